"""Tables of kernels, and of calls compared with an echo."""

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.raw import load
from benchmarks.tables.figures import markdown


def model_kernels(found: dict[str, Any]) -> str:
    """Calls of one row beside the time to read their bytes; of more rows and threads beside these.

    By instructions, each with its time, its share of the time to read as many bytes, what eight
    rows take over one and how many times as fast two threads are.
    """
    us = {
        (name, one["model"], one["kernel"], one["batch"], one["threads"]): one["us"]
        for name, run in found.items()
        for one in run["records"]
    }
    rows = []
    for one in next(iter(found.values()))["records"]:
        if (one["batch"], one["threads"]) != (1, 1):
            continue
        key, cells = (one["model"], one["kernel"]), []
        for name in found:
            alone = us[name, *key, 1, 1]
            reading = one["bytes"] / one["read_GBps"] / 1e3
            more = us[name, *key, 8, 1] / alone, alone / us[name, *key, 1, 2]
            cells += [f"{alone:,.0f}", f"{alone / reading:.2f}", *(f"{each:.2f}x" for each in more)]
        rows.append([*key, f"{one['bytes'] / 1e6:,.1f}", *cells])
    parts = "us", "/ reading", "8 rows / 1", "2 threads"
    head = ["model", "kernel", "MB read", *(f"{name}: {part}" for name in found for part in parts)]
    return markdown(head, rows)


def calls(asked: dict[str, Any]) -> str:
    """One row over gRPC beside an echo of the same messages."""
    rows = []
    for name, found in asked.items():
        echo, us = found["us"]["echo"], found["us"]["logitsieve"]
        times = (f"{time:,.0f}" for time in (echo["p50"], echo["p99"], us["p50"], us["p99"]))
        ratios = ("ratios_p50", "ratios_on_uvloop_p50")
        over = (f"{statistics.median(found[ratio]):.2f}" for ratio in ratios)
        rows.append([name, *times, *over, f"{found['server_compute_us_p50']:.0f}"])
    head = ["TopK", "echo p50", "p99", "ours p50", "p99 us", "ours / echo at p50"]
    return markdown([*head, "/ echo on uvloop", "compute us"], rows)


STEPS = {"top_k": "`topk`", "beam_step": "beam 5"}


def steps(found: list[dict[str, Any]]) -> str:
    """Whole steps: in process, as unary calls, and on a stream."""
    rows = []
    for one in found:
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


TABLES: dict[str, Callable[[], str]] = {
    "model-kernels": lambda: model_kernels(load("model-kernels")),
    "calls": lambda: calls(load("rpc")["asked"]),
    "steps": lambda: steps(load("rpc")["steps"]),
}
