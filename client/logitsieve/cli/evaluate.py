from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass
from typing import Any

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.results import Float32
from logitsieve.cli.options import KNOB, AsJson, IndexFolder, flag, numbers
from logitsieve.cli.output import bars, print_json, print_table
from logitsieve.evaluation import evaluate, us_per_row
from logitsieve.index_builder.contexts import Contexts, open_contexts
from logitsieve.utils.options import Progress

BLOCK_ROWS = 1024
KS = (1, 5, 10)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    contexts: str = flag(
        MISSING, "Contexts: H.npy, a folder of shards, H.npz:NAME or H.safetensors:NAME."
    )
    head: str = flag("", "The head to measure, instead of the index's default one.")
    knob: tuple[str, ...] = flag((), KNOB, metavar="NAME=VALUE")
    k: tuple[int, ...] = flag(
        (), "Number of answers per row; repeatable.", "-k", min=1, show_default="1, 5, 10"
    )
    batch: int = flag(1, "Rows in each timed call.", min=1)
    max_rows: int = flag(20_000, "Most contexts to judge, spread evenly over all.", min=1)
    threads: int = flag(1, "Number of CPU threads.", min=1)


def command(index: IndexFolder, options: EvaluateOptions, as_json: AsJson = False) -> None:
    """Measure a head's precision and speed on contexts, and the full softmax's.

    Example: logitsieve evaluate models/lm/1 --contexts heldout.npy --knob probes=2
    """
    from logitsieve.index import open_index

    batch = options.batch
    with bars("evaluate") as progress:
        opened = open_index(index, threads=options.threads, progress=progress)
        chosen = opened.head(options.head, **numbers("knob", options.knob))
        full = opened.head("full")
        ks = sorted(set(options.k)) or [k for k in KS if k <= opened.vocab_size]
        whole("k", ks[-1], 1, opened.vocab_size)
        judging = open_contexts(options.contexts, opened.dim)
        rows = min(judging.rows, options.max_rows)
        timed = judging.take(np.arange(min(rows, max(BLOCK_ROWS, batch))))
        results = []
        for head in {head.name: head for head in (chosen, full)}.values():
            judged = evaluate(head, full, _spread(judging, rows, head.name, progress), ks, batch)
            us = us_per_row(head, timed, max(ks), batch)
            facts = {"head": head.name, "knobs": dict(head.knobs), "us_per_row": us}
            facts["proven"] = head.proves
            results.append({**facts, **asdict(judged)})
    if as_json:
        print_json({"index": str(index), "digest": opened.digest, "batch": batch, "heads": results})
    else:
        _show(results, f"{opened.name} {opened.version}, {batch} row(s) a call")


def _spread(contexts: Contexts, rows: int, stage: str, progress: Progress) -> Iterator[Float32]:
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
            *(precision[name] for name in ("mean", "low", "worst")),
            result["coverage"][k],
            None if result["proven"] else result["mass_kept"],
            result["scanned"][k],
            result["us_per_row"],
        ]
        for result in results
        for k, precision in result["precision"].items()
    ]
    columns = ["head", "knobs", "k", "P@k", "low", "worst", "own", "mass", "scanned"]
    print_table(
        f"{title}, {results[0]['rows']:,} contexts; low: 95 % bound; worst: lowest block; "
        "own: share not left to the fallback; mass: probability kept",
        [*columns, "us/row"],
        rows,
    )
    if any(precision["uneven"] for precision in results[0]["precision"].values()):
        print("Warning: precision varies between blocks; were the fitted contexts spread?")
