"""Tables of the races: all softmaxes side by side, sketch by shape, growth with V, AVX2."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import compress
from typing import Any

from benchmarks.race.points import ANY, BATCH, COLD, FLOAT32, HIGH, LOW, WARM, Race, Time
from benchmarks.raw import RESULTS, load
from benchmarks.tables.figures import ABSENT, UNMEASURED, digits, markdown, ratio

MODELS = {  # every softmax of the comparison
    "lm-docs": "LSTM",
    "lstm-1500": "LSTM",
    "nmt-captions": "Transformer",
    "transformer-30k": "Transformer",
    "lm-docs-70k": "LSTM",
    "synthetic-250k": "synthetic",
}
SCREEN = "logitsieve screen"
BATCHES = RESULTS / "batches.json.gz"
SHAPES: tuple[str, ...] = ("lm-docs", "lstm-1500", "nmt-captions", "nmt-software")
SHAPES += ("transformer-30k", "lm-docs-70k", "synthetic-250k")
FIRST = "gemma-3-270m", "smollm2-135m"  # README.md
SLICES = ("lm-docs-2000", "lm-docs-4000", "lm-docs-6000", "lm-docs-8000")


def race(data: str) -> Race:
    return Race(load(f"race/{data}"))


def ours(name: str) -> bool:
    return name.startswith("logitsieve ")


def library(each: Race, name: str) -> bool:
    """True for approximate searches, and exact ones other than a product of all of W."""
    return not ours(name) and name not in FLOAT32 and not each.is_narrow(name)


def named(time: Time | None) -> str:
    return f"{digits(time.us)} {time.method}" if time else ABSENT


def against(time: Time | None, *others: Time | None) -> str:
    """`25.9 (4.5x, 2.0x)`: microseconds, and how many times as fast as each other."""
    if time is None:
        return ABSENT
    times = ", ".join(ratio(other.us / time.us) for other in others if other)
    return f"{digits(time.us)} ({times})" if times else digits(time.us)


def comparison(names: Iterable[str], field: str = WARM) -> str:
    """The best exact, quantised and other searches of each softmax, and ours over the first two."""
    rows = []
    for name in names:
        each = race(name)
        exact = each.exact(field=field)
        if exact is None:
            continue
        dense = each.narrow(field=field)
        best = each.fastest(partial(library, each), HIGH, field=field)
        asked = (("sketch 0", ANY), ("screen", HIGH), ("screen", LOW), ("frequency", LOW))
        times = (each.head(head, precise, field=field) for head, precise in asked)
        cells = [f"{MODELS[name]}, {each.shape}", digits(exact.us), named(dense), named(best)]
        cells[2] += f", {dense.p1:.4f} / {dense.p5:.4f}" if dense else ABSENT
        rows.append([*cells, *(against(time, exact, dense) for time in times)])
    head = ["µs per row (times as fast as float32, as quantised)"]
    head += ["best exact float32", "best quantised head, its P@1 / P@5", "best other library"]
    head += ["`sketch 0`, exact", "`screen`", "`screen`, P@1 >= 0.98"]
    head += ["list without context, P@1 >= 0.98"]
    raced_at_all = [any(cells) for cells in zip(*rows, strict=True)]
    head, *rows = ([*compress(line, raced_at_all)] for line in (head, *rows))
    return markdown(head, rows)


def first() -> str:
    """The best quantised product of each softmax that README.md shows, and `sketch` over it."""
    rows = []
    for name in FIRST:
        each = race(name)
        dense = each.narrow()
        if dense is None:
            continue
        heads = (each.head("sketch 0"), each.head("sketch 0.001", HIGH))
        ours = (against(time, dense) for time in heads)
        rows.append([f"{name}, {each.shape}", f"{digits(dense.us)} ({dense.method})", *ours])
    head = ["output layer alone, µs a row", "best quantised product"]
    return markdown([*head, "`sketch`, proven", "`max_error=1e-3`"], rows)


def sketch_by_shape() -> str:
    """One row a call, then 64, each beside the best exact float32; and memory."""
    head = ["", "V", "D", "best exact", "`sketch 0`", "B = 64", "memory"]
    rows = []
    for name in SHAPES:
        each = race(name)
        exact, proof = each.exact(), each.head("sketch 0")
        exact64, proof64 = each.exact(BATCH), each.head("sketch 0", mode=BATCH)
        if exact is None or proof is None:
            continue
        batch = f"{digits(exact64.us)} / {against(proof64, exact64)}" if exact64 else ABSENT
        share = each.of("logitsieve sketch 0")[0]["bytes_beyond_w"] / each.results["weight_bytes"]
        shape = f"{each.vocab_size:,}", f"{each.dim:,}"
        times = digits(exact.us), against(proof, exact), batch
        rows.append([name, *shape, *times, f"{100 * share:.0f} % of W"])
    return markdown(head, rows)


def growth() -> str:
    """The slices of lm-docs."""
    head = ["the LSTM's most frequent", "best exact float32", "`full`", "`sketch 0`"]
    rows = []
    for each in map(race, SLICES):
        best = each.exact()
        if best is None:
            continue
        heads = each.head("full"), each.head("sketch 0"), each.head("screen", LOW)
        cells = (against(time, best) for time in heads)
        rows.append([f"{each.vocab_size:,}", named(best), *cells])
    return markdown([*head, "`screen`, P@1 >= 0.98"], rows)


def shown(name: str) -> str:
    return f"`{name.removeprefix('logitsieve ')}`" if ours(name) else name


def screen(times: dict[str, dict[str, dict[str, float]]]) -> str:
    """`make bench`: each contender at each number of rows a call."""
    rows = []
    for name in next(iter(times.values())):
        cells = [shown(name)]
        for each in times.values():
            us = each[name]["median"]
            by = "" if name == SCREEN else f" ({ratio(us / each[SCREEN]['median'])})"
            cells.append(digits(us) + by)
        rows.append(cells)
    batches = (f"B = {batch}" for batch in times)
    return markdown(["µs per row (speed-up of the screen)", *batches], rows)


def processors() -> str:
    """The contenders of `make bench` with all that the CPU has, and held to AVX2."""
    files = {"": "screen", ", AVX2": "screen-avx2"}
    found = {label: load(name)["us_per_row"] for label, name in files.items()}
    names = list(found[""]["1"])
    rows = []
    for batch in found[""]:
        for label, times in found.items():
            each = times[batch]
            cells = (digits(each[name]["median"]) if name in each else ABSENT for name in names)
            rows.append([f"B = {batch}{label}", *cells])
    return markdown(["µs per row", *map(shown, names)], rows)


def batches(results: dict[str, Any]) -> str:
    """A row for each index and head: microseconds a row, and the most over one row a call."""
    rows, sizes = [], list[str]()
    for name, about in results["indexes"].items():
        vocab_size, dim, _ = about["shape"]
        for head, times in about["us_per_row"].items():
            sizes = list(times)
            worst = max(times, key=lambda size: float(times[size]))
            cells = [f"{name}: V = {vocab_size:,}, D = {dim:,}", f"`{head}`"]
            cells += map(digits, times.values())
            rows.append([*cells, f"{times[worst] / times['1']:.2f}x (B = {worst})"])
    head = ["µs a row", "", *(f"B = {size}" for size in sizes), "the most, over B = 1"]
    return markdown(head, rows, 1)


TABLES: dict[str, Callable[[], str]] = {
    "softmax, first": first,
    "races": lambda: comparison(MODELS),
    "races, cold": lambda: comparison(MODELS, COLD),
    "sketch by shape": sketch_by_shape,
    "growth": growth,
    "batches, amx": lambda: batches(load("batches-amx")),
    "batches": lambda: batches(load("batches")) if BATCHES.exists() else UNMEASURED,
    "screen": lambda: screen(load("screen")["us_per_row"]),
    "processors": processors,
}
