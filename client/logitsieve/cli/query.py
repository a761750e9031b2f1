from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import typer
from numpy.lib.format import read_array

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec, NormalizerName
from logitsieve.api.requests import checked_temperature
from logitsieve.api.results import SampleReply, TopKReply
from logitsieve.cli.options import KNOB, AsJson, flag, numbers, read_text, read_words
from logitsieve.cli.output import print_json, print_table
from logitsieve.client import AdminClient, DecoderClient, ModelInfo, Tls
from logitsieve.client.connection import seconds
from logitsieve.client.decoder_client import ADDRESS

Client = TypeVar("Client", AdminClient, DecoderClient)

TIMEOUT = "Seconds to wait for the answer: more than 0, at most 3600."


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    address: str = flag(
        ADDRESS, "host:port of the server.", envvar="LOGITSIEVE_ADDRESS", show_envvar=False
    )
    timeout_s: float = flag(5.0, TIMEOUT, callback=seconds)
    tls: bool = flag(False, "Connect with TLS.", "--tls")
    tls_ca: Path | None = flag(
        None, "PEM file of the authorities that sign the server's certificate."
    )
    tls_cert: Path | None = flag(None, "PEM file of the client's certificate.")
    tls_key: Path | None = flag(None, "PEM file of the private key of --tls-cert.")
    api_key_file: Path | None = flag(None, "File with an API key and nothing else.")

    def open(self, client: type[Client]) -> Client:
        by_tls = self.tls or self.tls_ca or self.tls_cert or self.tls_key
        tls = Tls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key) if by_tls else None
        api_key = None  # LOGITSIEVE_API_KEY
        if self.api_key_file is not None:
            api_key = read_text("api_key_file", self.api_key_file, "a file with an API key").strip()
        return client(self.address, timeout_s=self.timeout_s, tls=tls, api_key=api_key)


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    model: str = flag("", "The model: name, name@version or name:alias.")
    hidden_states: Path | None = flag(None, "File of context vectors, a .npy array [B, D] or [D].")
    k: int = flag(5, "Number of answers per row.", "-k", min=1)
    head: str = flag(
        "", "Name of the head; by default the fastest, and for --num-samples sketch or full."
    )
    knob: tuple[str, ...] = flag((), KNOB, metavar="NAME=VALUE")
    min_precision: float | None = flag(
        None, "Let the server choose the fastest point with at least this P@k, from 0 to 1."
    )
    exact: bool = flag(
        False, "Let the server choose the fastest point that proves answers.", "--exact"
    )
    max_error: float | None = flag(
        None, "The largest chance that a row is wrong, from 0 (a proof) to below 1."
    )
    normalizer: NormalizerName | None = flag(
        None,
        "Normalizer of the log-probabilities; by default full for the best ids, and the server's"
        " choice for draws.",
    )
    width: float | None = flag(
        None,
        "Limit on the error of log-probabilities, in nats, 1e-09 to 100: the width of a proven"
        " interval of log Z. Without --normalizer the server chooses how to compute it.",
    )
    num_samples: int = flag(0, "Draw N ids per row instead of the best ones.", min=0, metavar="N")
    seed: int | None = flag(
        None,
        "Seed of the draws of --num-samples, spread over the rows; by default a fresh one.",
        min=0,
    )
    temperature: float = flag(
        1.0,
        "Temperature of the draws of --num-samples: 0, or 1e-05 to 10000.",
        "--temperature",
        "--temp",
        callback=lambda value: checked_temperature(value),  # typer passes by parameters' names
    )
    replace: bool = flag(
        True, "Draw with replacement, or draw different ids.", "--replace/--no-replace"
    )
    vocab_file: Path | None = flag(
        None, "Text file of the words by id, one per line, which are shown with the ids."
    )

    def ask(self, client: DecoderClient, rows: np.ndarray) -> TopKReply | SampleReply:
        spec = ModelSpec(
            model=self.model,
            head=self.head,
            knobs=numbers("knob", self.knob),
            min_precision=self.min_precision,
            exact=self.exact,
            max_error=self.max_error,
            normalizer=self.normalizer,
            width=self.width,
        )
        if self.num_samples:
            return client.sample(
                rows,
                self.num_samples,
                seeds=self.seed,
                temperature=self.temperature,
                replace=self.replace,
                **spec,
            )
        if self.width is None:
            spec["normalizer"] = self.normalizer or "full"
        return client.topk(rows, self.k, **spec)


def command(
    server: ServerOptions,
    options: QueryOptions,
    what: Annotated[
        Literal["models"] | None, typer.Argument(help="models lists the models of the server.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a server for the next tokens, or with `query models` for its models.

    Example: logitsieve query --address localhost:50051 --model lm --hidden-states h.npy -k 5
    """
    with server.open(DecoderClient) as client:
        if what == "models":
            _show_models(client.models(), as_json)
            return
        hidden_states = _read_hidden(options.hidden_states)
        words = read_words(options.vocab_file) if options.vocab_file else None
        reply = options.ask(client, hidden_states)
        if words is not None:
            answering = client.model(f"{reply.answer.model}@{reply.answer.version}")
            _refuse_words_of_others(words, answering)
    _show(reply, words, as_json)


def _read_hidden(path: Path | None) -> np.ndarray:
    if path is None or not path.is_file():
        allowed = "an existing .npy file; `query models` lists the models"
        raise InvalidRequest("hidden_states", path or "nothing", allowed)
    try:
        with path.open("rb") as file:
            return np.asarray(read_array(file, allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise InvalidRequest("hidden_states", f"{path} ({error})", "a .npy file") from error


def _refuse_words_of_others(words: list[str], model: ModelInfo) -> None:
    if len(words) != model.vocab_size:
        allowed = f"{model.vocab_size}, one for each id of {model.name}@{model.version}"
        raise InvalidRequest("vocab_file", f"{len(words)} lines", allowed)
    own = vocabulary_sha256(words)
    if model.vocabulary_id not in ("", own):
        allowed = f"the words of {model.name}@{model.version}, sha256 {model.vocabulary_id}"
        raise InvalidRequest("vocab_file", f"other words, sha256 {own}", allowed)


def vocabulary_sha256(words: list[str]) -> str:
    """Return the `vocabulary_id` of a model with these words: the hash of their file."""
    return sha256("".join(f"{word}\n" for word in words).encode()).hexdigest()


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
    columns: dict[str, np.ndarray] = {"id": reply.ids}
    if isinstance(reply, TopKReply):
        columns |= {"logit": reply.logits, "log_prob": reply.log_probs()}
    else:
        columns |= {"log_prob": reply.log_probs}
        if reply.perturbed is not None:
            columns |= {"perturbed": reply.perturbed}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    answers = [
        [dict(zip(columns, one, strict=True)) for one in zip(*row, strict=True) if one[0] >= 0]
        for row in rows
    ]
    if words is not None:
        for one in chain(*answers):
            one["word"] = words[one["id"]]
    return answers


def _show(reply: TopKReply | SampleReply, words: list[str] | None, as_json: bool) -> None:
    answer, best = reply.answer, isinstance(reply, TopKReply)
    facts = answer.proven.tolist(), answer.max_errors.tolist(), answer.scanned.tolist()
    shown = list(zip(*facts, _answers(reply, words), strict=True))
    if as_json:
        names = ("model", "version", "digest", "head", "normalizer")
        origin = {name: getattr(answer, name) for name in names} | {"knobs": dict(answer.knobs)}
        columns = ["proven", "max_error", "scanned", "top" if best else "draws"]
        print_json({**origin, "rows": [dict(zip(columns, row, strict=True)) for row in shown]})
        return
    columns = ["row", "rank" if best else "draw"]
    columns += ["word", "id", "logit", "log prob", "proven", "scanned"]
    rows: list[list[object]] = []
    for row, (certain, max_error, scanned, answers) in enumerate(shown):
        proven = "yes" if certain else "no" if max_error == 1.0 else f"but for {max_error:g}"
        for rank, one in enumerate(answers, start=1):
            named = [one.get(name) for name in ("word", "id", "logit", "log_prob")]
            rows.append([row, rank, *named, proven, scanned])
    knobs = " ".join(f"{name}={value:g}" for name, value in answer.knobs.items())
    title = f"{answer.model}@{answer.version} {answer.head} {knobs}".rstrip()
    print_table(f"{title}, log Z: {answer.normalizer}", columns, rows)
