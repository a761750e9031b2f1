"""What `python -m benchmarks.papers` and the race measured of the five papers."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from benchmarks import raw
from benchmarks.papers.__main__ import PAPERS
from benchmarks.race.points import LOW, Precision, Race
from benchmarks.tables.figures import UNMEASURED, digits, markdown, ratio

# Chen et al. 2019, Table 2: speed-up, P@1 / P@5 on PTB-Small, PTB-Large and DE-EN, and what stands
# for each method here, the first that took part.
TABLE_2: dict[tuple[str, ...], tuple[str, str, str]] = {
    ("logitsieve screen",): ("10.6x 0.998 / 0.990", "45.3x 0.996 / 0.982", "20.4x 0.989 / 0.993"),
    ("FGD", "hnswlib l2"): ("1.3x 0.980 / 0.989", "6.9x 0.975 / 0.979", "6.7x 0.987 / 0.981"),
    ("logitsieve svd",): ("0.8x 0.987 / 0.99", "2.3x 0.988 / 0.981", "3.4x 0.98 / 0.985"),
    ("adaptive softmax",): ("1.9x 0.972 / 0.981", "4.2x 0.974 / 0.937", "3.2x 0.982 / 0.984"),
    ("greedy-MIPS",): ("0.5x 0.998 / 0.972", "1.8x 0.945 / 0.903", "2.6x 0.911 / 0.887"),
    ("PCA-tree MIPS",): ("0.14x 0.322 / 0.341", "0.5x 0.361 / 0.326", "1.3x 0.379 / 0.320"),
    ("LSH-MIPS", "logitsieve lsh"): (
        "1.3x 0.165 / 0.33",
        "2.2x 0.353 / 0.31",
        "1.6x 0.131 / 0.137",
    ),
    ("logitsieve frequency",): ("", "", ""),
    ("logitsieve sketch 0",): ("", "", ""),
}
FAIR = "papers/001-table-2"  # races with FGD and LSH-MIPS as published
# With the precision of L2S there, which every method is asked for.
RACES: tuple[tuple[str, Precision, tuple[str, ...]], ...] = (
    ("PTB-Small", (0.998, 0.990), ("race/lm-docs", FAIR)),
    ("PTB-Large", (0.996, 0.982), ("race/lstm-1500",)),
    ("DE-EN", (0.989, 0.993), ("race/nmt-captions",)),
)
UNMATCHED: tuple[tuple[str, tuple[str, ...]], ...] = (  # of no shape in the paper
    ("V = 30,000, D = 512", ("race/transformer-30k", f"{FAIR}-transformer-30k")),
    ("SmolLM2 135M", ("race/smollm2-135m",)),
    ("Gemma 3 270M", (f"{FAIR}-gemma-3-270m", "race/gemma-3-270m")),
)
COLUMNS = {
    "data": "on",
    "rule": "rule",
    "delta": "delta",
    "k": "k = l",
    "differ": "draws that differ",
    "equal": "with equal logits",
    "method": "loss",
    "head": "head",
    "rank": "R",
    "beams": "beams",
    "bleu": "BLEU",
    "tau": "tau",
    "words": "words",
    "clusters": "clusters",
    "rounds": "rounds of training",
    "rows": "B",
    "vocab_size": "V",
    "dim": "D",
    "classes_of_a_row": "classes scored: a row",
    "classes_of_a_step": "a step",
    "error": "error of the gradient in W",
    "rate": "rate",
    "perplexity": "perplexity",
    "perplexities": "by seed",
    "features": "features",
    "mse": "mean squared error",
    "gaussian_mse": "without e^tau",
    "every": "clustered every",
    "steps": "steps",
    "p1": "P@1",
    "p5": "P@5",
    "candidates": "candidates",
    "same_as_exact": "as by `full`",
    "us_per_row": "µs a row",
    "cpu_us": "CPU µs a row",
    "ms": "CPU ms a step",
    "cpu_seconds": "CPU seconds",
}
FORMATS = {"p1": ".4g", "p5": ".4g", "rate": ".4g", "perplexity": ".1f", "mse": ".1e"}
FORMATS |= {"gaussian_mse": ".1e", "same_as_exact": ".1%"}
SETTINGS = {
    "data": "on {}",
    "words": "{} words",
    "rows": "B = {}",
    "vocab_size": "V = {}",
    "dim": "D = {}",
    "every": "clustered every {} steps",
}  # under the table instead, if all rows have the same


def table_2() -> str:
    """Render Table 2 of Chen et al. with our races of similar shapes."""
    asked = [*RACES, *((name, LOW, files) for name, files in UNMATCHED)]
    races = [[Race(raw.load(name)) for name in names] for *_, names in asked]
    head = [""]
    for (paper, *_), (first, *_) in zip(RACES, races, strict=False):
        head += [f"paper, {paper}", f"here, {first.shape}"]
    head += [f"here, {name}" for name, _ in UNMATCHED]
    rows = []
    for methods, theirs in TABLE_2.items():
        ours = [
            fastest(each, methods, precise)
            for each, (_, precise, _) in zip(races, asked, strict=True)
        ]
        pairs = zip(theirs, ours, strict=False)
        rows.append([methods[0].removeprefix("logitsieve "), *chain(*pairs), *ours[len(RACES) :]])
    return markdown(head, rows)


def fastest(races: list[Race], methods: tuple[str, ...], precise: Precision) -> str:
    """Render the fastest setting that is so precise, over the best float32; or the most precise.

    `methods` are tried in order, each in all `races`: the first that took part counts.
    """
    took_part = ((name, each) for name in methods for each in races if name in each.methods)
    method, each = next(took_part, ("", races[0]))
    exact = each.exact()
    if exact is None or not method:
        return "not raced"
    shown = "" if method == methods[0] else f"{method.removeprefix('logitsieve ')} "
    found = each.fastest(method.__eq__, precise)
    if found is None:
        best = max(each.of(method), key=lambda point: min(point["p1"], point["p5"]))
        return f"{shown}at most {best['p1']:.3f} / {best['p5']:.3f}"
    return f"{shown}{ratio(exact.us / found.us)} {found.p1:.3f} / {found.p5:.3f}"


def measured(paper: str, run: str) -> str:
    """All rows of one raw file, if it is there."""
    found = raw.load(f"papers/{paper}-{run.replace(' ', '-')}")
    return table(found) if found else UNMEASURED


def table(results: dict[str, Any]) -> str:
    """All that was measured, and how."""
    rows: list[Mapping[str, Any]] = results["rows"]
    first = rows[0]
    same = [key for key in SETTINGS if key in first and all(row[key] == first[key] for row in rows)]
    by_steps = len({row.get("steps") for row in rows}) == 1
    timed = (
        ("steps" if by_steps else "cpu_seconds",) if "steps" in first else ()
    )  # the same for all
    shown = [key for key in COLUMNS if key in first and key not in (*same, *timed)]
    cells = [[cell(key, row[key]) for key in shown] for row in rows]
    settings = ", ".join(SETTINGS[key].format(cell(key, first[key])) for key in same)
    text = markdown([COLUMNS[key] for key in shown], cells, int(shown[0] == "data"))
    command = results["command"].removeprefix("python -m benchmarks.papers ")
    return f"{text}\n`{command}`{settings and ': '}{settings}\n"


def cell(key: str, value: float | str | list[float] | list[str]) -> str:
    if isinstance(value, list):
        return " ".join(each if isinstance(each, str) else f"{each:.1f}" for each in value)
    if isinstance(value, str):
        return value if key in ("data", "rule", "rank", "gaussian_mse") else f"`{value}`"
    if value == math.inf:
        return "diverged"
    if key in FORMATS:
        return format(value, FORMATS[key])
    return f"{value:,}" if isinstance(value, int) else digits(value)


TABLES: dict[str, Callable[[], str]] = {
    "papers, 001, table 2": table_2,
    **{
        f"papers, {paper}, {run}": partial(measured, paper, run)
        for paper, runs in PAPERS.items()
        for run in runs
    },
    "papers, 002, table 3, by steps": partial(measured, "002", "table 3 by steps"),
    "papers, 003, figure 4, by steps": partial(measured, "003", "figure 4 by steps"),
}
