"""`logitsieve query`: needs no extra, only a server."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.lib.format import read_array

from logitsieve.api.decoder import NormalizerName, Target
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import SampleReply, TopKReply
from logitsieve.cli.console import print_json, print_table
from logitsieve.cli.options import (
    AsJson,
    Authorities,
    ByTls,
    Certificate,
    Key,
    Knobs,
    TokenFile,
    numbers,
    read_token,
    read_words,
    to_tls,
)
from logitsieve.client import DecoderClient, ModelInfo


def command(
    address: Annotated[str, typer.Option(help="host:port of the server.")] = "localhost:50051",
    model: Annotated[str, typer.Option(help="The model: name, name@version or name:alias.")] = "",
    hidden: Annotated[
        Path | None,
        typer.Option(help="File of context vectors, a .npy array [B, D] or [D]."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of answers per row.")] = 5,
    head: Annotated[
        str, typer.Option(help="Name of the head; the server chooses the fastest if absent.")
    ] = "",
    knob: Knobs = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="Let the server pick the fastest point with at least this P@k, from 0 to 1."
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Let the server pick the fastest point that proves answers."),
    ] = False,
    normalizer: Annotated[
        NormalizerName | None,
        typer.Option(
            help="Normalizer of the log-probabilities; absent: exact for the best ids,"
            " the server's choice for draws."
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Draw N ids per row instead of the best ones."),
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the draws of --sample; fresh draws if absent."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Temperature of the draws of --sample; 0 or more.")
    ] = 1.0,
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="Text file of the words by id, one per line, to show with the ids."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(help="Seconds to wait for the answer, at most 3600.")
    ] = 5.0,
    tls: ByTls = False,
    tls_ca: Authorities = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    token_file: TokenFile = None,
    models: Annotated[
        bool, typer.Option("--models", help="List the models of the server.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a server for the next tokens; without --hidden, list its models.

    Example: logitsieve query --address localhost:50051 --model lm --hidden h.npy -k 5
    """
    with DecoderClient(
        address,
        timeout_s=timeout_s,
        tls=to_tls(tls, tls_ca, tls_cert, tls_key),
        token=read_token(token_file),
    ) as client:
        if models or hidden is None:
            _show_models(client.models(), as_json)
            return
        rows = _read_hidden(hidden)
        target = Target(
            model=model,
            head=head,
            knobs=numbers("knob", knob or []),
            min_precision=min_precision,
            exact=exact,
            normalizer=normalizer,
        )
        reply: TopKReply | SampleReply
        if sample:
            reply = client.sample(rows, sample, seeds=seed, temperature=temperature, **target)
        else:
            target["normalizer"] = normalizer or "exact"
            reply = client.topk(rows, k, **target)
    _show(reply, None if vocabulary is None else _words_up_to(vocabulary, reply.ids.max()), as_json)


def _read_hidden(path: Path) -> np.ndarray:
    if not path.is_file():
        raise InvalidRequest("hidden", path, "an existing .npy file")
    try:
        with path.open("rb") as file:
            return np.asarray(read_array(file, allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise InvalidRequest("hidden", f"{path} ({error})", "a .npy file") from error


def _words_up_to(path: Path, highest: int) -> list[str]:
    words = read_words(path)
    if highest >= len(words):
        raise InvalidRequest("vocabulary", f"{len(words)} lines", f"one for each id, {highest} too")
    return words


def _show_models(models: list[ModelInfo], as_json: bool) -> None:
    columns = ["name", "version", "state", "aliases", "vocab_size", "dim", "heads", "error"]
    rows = [{column: getattr(model, column) for column in columns} for model in models]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["aliases"], row["heads"] = ", ".join(row["aliases"]), ", ".join(row["heads"])
    print_table("models", columns, [list(row.values()) for row in rows])


def _answers(reply: TopKReply | SampleReply, words: list[str] | None) -> list[list[dict[str, Any]]]:
    """The numbers (and word) of each id, row by row."""
    columns: dict[str, np.ndarray] = {"id": reply.ids}
    if isinstance(reply, TopKReply):
        columns |= {"logit": reply.logits, "log_prob": reply.log_probs()}
    else:
        columns |= {"log_prob": reply.log_probs}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    answers = [
        [dict(zip(columns, one, strict=True)) for one in zip(*row, strict=True)] for row in rows
    ]
    if words is not None:
        for one in chain(*answers):
            one["word"] = words[one["id"]]
    return answers


def _show(reply: TopKReply | SampleReply, words: list[str] | None, as_json: bool) -> None:
    answer, best = reply.answer, isinstance(reply, TopKReply)
    shown = list(
        zip(answer.exact.tolist(), answer.scanned.tolist(), _answers(reply, words), strict=True)
    )
    if as_json:
        names = ("model", "version", "digest", "head", "normalizer")
        facts = {name: getattr(answer, name) for name in names} | {"knobs": dict(answer.knobs)}
        columns = ["exact", "scanned", "top" if best else "draws"]
        print_json({**facts, "rows": [dict(zip(columns, row, strict=True)) for row in shown]})
        return
    columns = ["row", "rank" if best else "draw"]
    columns += ["word", "id", "logit", "log prob", "proven", "scanned"]
    rows: list[list[object]] = []
    for row, (exact, scanned, answers) in enumerate(shown):
        for rank, one in enumerate(answers, start=1):
            named = [one.get(name) for name in ("word", "id", "logit", "log_prob")]
            rows.append([row, rank, *named, "yes" if exact else "no", scanned])
    knobs = " ".join(f"{name}={value:g}" for name, value in answer.knobs.items())
    title = f"{answer.model}@{answer.version} {answer.head} {knobs}".rstrip()
    print_table(f"{title}, log Z: {answer.normalizer}", columns, rows)
