"""Tables of kernels, of calls compared with an echo, and of the service under load."""

import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

from benchmarks.raw import load
from benchmarks.tables.figures import digits, markdown


def kernels(records: list[dict[str, Any]]) -> str:
    rows = []
    for one in records:
        shape = f"{one['vocab_size']:,}", f"{one['dim']:,}"
        times = f"{one['us_per_row']:,.2f}", f"{one['bound_us_per_row']:,.2f}"
        rows.append([one["name"], *shape, *times, f"{one['share']:.0%}", one["by"]])
    head = ["kernel", "V", "D", "us/row", "bound us/row", "share of bound", "bound by"]
    return markdown(head, rows)


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


LOADS = ((1, 1), (1, 64), (64, 16))  # rows a call, clients
RUNS = {"echo": "echo", "own head": "default head", "full": "`full`"}


def under_load() -> str:
    lines = []
    runs = {(one["rows"], one["clients"]): one["runs"] for one in load("load")["closed"]}
    for (rows, clients), (name, label) in product(LOADS, RUNS.items()):
        run = runs[rows, clients][name]
        rate = digits(run["good_per_s"])
        many = f" ({digits(rows * run['good_per_s'])} rows/s)" * (rows > 1 and name != "echo")
        times = [digits(run["us"][rank] / 1000) for rank in ("p50", "p99", "p99.9")]
        lines.append([f"{rows}, {clients}", label, rate + many, *times])
    return markdown(["rows per call, clients", "", "answers/s", "p50", "p99", "p99.9 ms"], lines, 1)


UNDER_LOAD = ["answers/s", "p50 us", "p99 us", "p99.9 us", "refused, p99 us", "codes"]
RIGHT = {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}


def load_page(results: dict[str, Any]) -> str:
    """results/load.md: conditions, and a table for each part."""
    cpus, over = results["cpus"], results["overload"]
    wrong = {code for run in over["runs"].values() for code in run["codes"]} - RIGHT
    codes = f"refused by other codes: {', '.join(sorted(wrong))}" if wrong else "all codes right"
    closed = [
        [str(one["rows"]), str(one["clients"]), name, *cells(run)]
        for one in results["closed"]
        for name, run in one["runs"].items()
    ]
    [queued] = results["batching"]
    parts = [
        f"{results['machine']['cpu']}, V = {results['vocab_size']:,}, D = {results['dim']}, "
        f"k = {results['k']}, float32; server on cores {cpus['server']} with {results['threads']} "
        f"thread, clients on cores {cpus['clients']}; {results['seconds']:g} s each.\n",
        markdown(["rows", "clients", "", *UNDER_LOAD], closed),
        by_name("single rows, full", queued["runs"], f"{queued['clients']} clients, "),
        by_name(f"{over['rows']} rows, full", over["runs"]),
        f"Goodput under overload: {over['share_of_peak']:.2f} of the peak; {codes}.\n",
        by_name("single rows, clients like ours", results["deadlines"]["runs"]),
        by_name("single rows, clients like others", results["others"]["runs"]),
    ]
    return "\n".join(parts)


def by_name(head: str, runs: dict[str, Any], prefix: str = "") -> str:
    rows = [[prefix + name, *cells(run)] for name, run in runs.items()]
    return markdown([head, *UNDER_LOAD], rows)


def cells(run: dict[str, Any]) -> list[str]:
    us = run["us"]
    numbers = run["good_per_s"], us["p50"], us["p99"], us["p99.9"], run["refused_us"]["p99"]
    codes = ", ".join(f"{code} {count}" for code, count in sorted(run["codes"].items()))
    return [*(f"{number:.0f}" for number in numbers), codes]


TABLES: dict[str, Callable[[], str]] = {
    "kernels": lambda: kernels(load("kernels")["records"]),
    "model-kernels": lambda: model_kernels(load("model-kernels")),
    "calls": lambda: calls(load("rpc")["asked"]),
    "steps": lambda: steps(load("rpc")["steps"]),
    "load": under_load,
}
