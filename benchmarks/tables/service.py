"""Tables of kernels and proofs, of calls beside an echo, and of the service under load."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.tables.figures import ABSENT, digits, markdown
from benchmarks.tables.results import load


def kernels() -> str:
    rows = []
    for one in load("kernels")["records"]:
        shape = f"{one['vocab_size']:,}", f"{one['dim']:,}"
        times = f"{one['us_per_row']:,.2f}", f"{one['bound_us_per_row']:,.2f}"
        rows.append([one["name"], *shape, *times, f"{one['share']:.0%}", one["by"]])
    head = ["kernel", "V", "D", "us/row", "bound us/row", "share of bound", "bound by"]
    return markdown(head, rows)


def calls() -> str:
    """One row over gRPC beside an echo of the same messages."""
    rows = []
    for name, found in load("rpc")["asked"].items():
        echo, us = found["us"]["echo"], found["us"]["logitsieve"]
        times = (f"{time:,.0f}" for time in (echo["p50"], echo["p99"], us["p50"], us["p99"]))
        ratios = ("ratios_p50", "ratios_on_uvloop_p50")
        over = (f"{statistics.median(found[ratio]):.2f}" for ratio in ratios)
        rows.append([name, *times, *over, f"{found['server_compute_us_p50']:.0f}"])
    head = ["TopK", "echo p50", "p99", "ours p50", "p99 us", "ours / echo at p50"]
    return markdown([*head, "/ echo on uvloop", "compute us"], rows)


MODELS = {"nmt": "German-English Transformer", "demo": "the demo's language model"}


def models() -> dict[str, Any]:
    """The results of `benchmarks.exactness` by the model and its shape."""
    found = load("exactness")
    return {
        f"{MODELS[name]}, V = {one['vocab_size']:,}, D = {one['dim']:,}": one
        for name, one in found.items()
    }


def beam_groups() -> str:
    """The share of groups of beams that each stage of log Z decides, in the order of the stages."""
    found = {
        f"{model}, `{normalizer}`": counts
        for model, one in models().items()
        for normalizer, counts in one["groups"].items()
    }
    stages = "the first interval", "the float32 pass", "float64", "not exact"
    rows = []
    for name, counts in found.items():
        groups = counts["groups"]
        shares = (f"{counts[one] / groups:.2%}" if one in counts else "" for one in stages)
        rows.append([name, f"{groups:,}", *shares])
    return markdown(["", "groups", *stages], rows)


def proofs() -> str:
    """What proven log-probabilities, steps and draws cost, by model."""
    columns = models()
    names = list(dict.fromkeys(name for one in columns.values() for name in one["us_per_row"]))
    rows = []
    for name in names:
        times = (one["us_per_row"].get(name) for one in columns.values())
        rows.append([name, *(ABSENT if us is None else digits(us) for us in times)])
    return markdown(["µs per row", *columns], rows)


STEPS = {"top_k": "`topk`", "beam_step": "beam 5"}


def steps() -> str:
    """Whole steps: in process, as unary calls, and on a stream."""
    rows = []
    for one in load("rpc")["steps"]:
        sentences, us = one["rows"] // 5, one["us"]
        count = f", {sentences} sentence{'s' * (sentences > 1)}" * (one["step"] == "beam_step")
        times = [us["in process"]["p50"]]
        times += [us[way][rank] for way in ("unary", "stream") for rank in ("p50", "p99")]
        name = STEPS[one["step"]] + count
        shown = (f"{time:,.0f}" for time in times)
        over = statistics.median(one["ratios_p50"])
        rows.append([name, str(one["rows"]), *shown, f"{over:.2f}"])
    head = ["step", "rows", "in process p50", "unary p50", "p99", "stream p50", "p99 us"]
    return markdown([*head, "stream / unary"], rows)


LOADS = ((1, 1), (1, 64), (64, 16))  # rows a call, clients
RUNS = {"echo": "echo", "own head": "default head", "exact": "`exact`"}


def closed_load(rows: int, clients: int) -> Any:
    """The runs of a closed loop."""
    [found] = [
        one["runs"]
        for one in load("load")["closed"]
        if (one["rows"], one["clients"]) == (rows, clients)
    ]
    return found


def under_load() -> str:
    lines = []
    for rows, clients in LOADS:
        for number, (name, label) in enumerate(RUNS.items()):
            run = closed_load(rows, clients)[name]
            rate = digits(run["good_per_s"])
            many = f" ({digits(rows * run['good_per_s'])} rows/s)" * (rows > 1 and name != "echo")
            times = [digits(run["us"][rank] / 1000) for rank in ("p50", "p99", "p99.9")]
            lines.append([f"{rows}, {clients}" * (not number), label, rate + many, *times])
    return markdown(["rows per call, clients", "", "answers/s", "p50", "p99", "p99.9 ms"], lines)


def console_calls() -> str:
    """Runs that alternate, while nobody looks at the console and while somebody does."""
    found, ranks = load("console"), ("p50", "p99")
    rows = []
    for name, label in (("without", "closed"), ("with", "open and refreshing")):
        for rank in ranks:
            times = [f"{run[rank] / 1000:.2f}" for run in found["runs"][name]]
            rows.append([label if rank == ranks[0] else "", rank, *times])
    return markdown(["console", "ms", *map(str, range(1, len(found["ratios_p99"]) + 1))], rows)


def console_size() -> str:
    """Milliseconds to the first paint of each page, and the bytes of all pages and files."""
    found = load("console")
    paints = [f"{ms:.0f}" for ms in found["paint_ms"].values()]
    size = f"{sum(found['bytes'].values()) / 1000:.0f}"
    return markdown(["", *found["paint_ms"], "all, KB"], [["first paint, ms", *paints, size]])


TABLES: dict[str, Callable[[], str]] = {
    "kernels": kernels,
    "beam groups": beam_groups,
    "proofs": proofs,
    "calls": calls,
    "steps": steps,
    "load": under_load,
    "console calls": console_calls,
    "console size": console_size,
}
