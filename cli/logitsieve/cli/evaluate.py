"""`logitsieve evaluate`: precision and speed of a head on contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.cli.console import bars, print_json, print_table
from logitsieve.cli.options import AsJson, IndexFolder, Knobs, numbers
from logitsieve.evaluation import evaluate, us_per_row
from logitsieve.index import open_index
from logitsieve.index_builder.contexts import Contexts, open_contexts
from logitsieve.utils.options import Progress

BLOCK_ROWS = 1024
KS = (1, 5, 10)


def command(
    index: IndexFolder,
    contexts: Annotated[
        str,
        typer.Option(help="Contexts: H.npy, a folder of shards, H.npz:NAME or H.safetensors:NAME."),
    ],
    head: Annotated[
        str, typer.Option(help="The head to measure, instead of the index's default one.")
    ] = "",
    knob: Knobs = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "-k", min=1, help="Number of answers per row; repeatable.", show_default="1, 5, 10"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows in each timed call.")] = 1,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Contexts judged at most, spread evenly over all.")
    ] = 20_000,
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure a head on contexts, and the exact softmax beside it.

    Example: logitsieve evaluate models/lm/1 --contexts heldout.npy --knob probes=2
    """
    with bars("evaluate") as progress, TemporaryDirectory() as scratch:
        opened = open_index(index, threads=threads, progress=progress)
        chosen, exact = opened.head(head, **numbers("knob", knob or [])), opened.head("exact")
        ks = sorted(set(k)) if k else [each for each in KS if each <= opened.vocab_size]
        if ks[-1] > opened.vocab_size:
            raise InvalidRequest("k", ks[-1], f"1..{opened.vocab_size}")
        judging = open_contexts(contexts, opened.dim, Path(scratch))
        rows = min(judging.rows, max_rows)
        timed = judging.take(np.arange(min(rows, max(BLOCK_ROWS, batch))))
        results = []
        for each in {each.name: each for each in (chosen, exact)}.values():
            judged = evaluate(each, exact, _spread(judging, rows, each.name, progress), ks)
            us = us_per_row(each, timed, max(ks), batch)
            facts = {"head": each.name, "knobs": dict(each.knobs), "us_per_row": us}
            results.append({**facts, **asdict(judged)})
    if as_json:
        print_json({"index": str(index), "digest": opened.digest, "batch": batch, "heads": results})
    else:
        _show(results, f"{opened.name} {opened.version}, {batch} row(s) a call")


def _spread(contexts: Contexts, rows: int, stage: str, progress: Progress) -> Iterator[Float32]:
    """Blocks of `rows` contexts that lie evenly over all, in their order."""
    chosen = np.arange(rows) * contexts.rows // rows
    for start in range(0, rows, BLOCK_ROWS):
        yield contexts.take(chosen[start : start + BLOCK_ROWS])
        progress(stage, min(start + BLOCK_ROWS, rows), rows)


def _show(results: list[dict[str, Any]], title: str) -> None:
    rows: list[list[object]] = [
        [
            result["head"],
            " ".join(f"{name}={value:g}" for name, value in result["knobs"].items()),
            k,
            precision["mean"],
            precision["low"],
            precision["worst"],
            result["coverage"][k],
            result["covered"].get(k),
            result["mass_kept"],
            result["scanned"][k],
            result["us_per_row"],
        ]
        for result in results
        for k, precision in result["precision"].items()
    ]
    columns = ["head", "knobs", "k", "P@k", "low", "worst", "own", "own P@k", "mass", "scanned"]
    print_table(
        f"{title}, {results[0]['rows']:,} contexts; low: 95 % bound; worst: lowest block; "
        "own: share not left to the fallback; mass: probability kept",
        [*columns, "us/row"],
        rows,
    )
    if any(precision["uneven"] for precision in results[0]["precision"].values()):
        print("Warning: precision varies between blocks; were the fitted contexts spread?")
