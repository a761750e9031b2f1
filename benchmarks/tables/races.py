"""Tables of the races: all softmaxes side by side, certified by shape, growth with V, AVX2."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.race.kinds import is_narrow
from benchmarks.race.table import FLOAT32
from benchmarks.tables.figures import ABSENT, digits, fixed, markdown, percent, plain, ratio
from benchmarks.tables.results import (
    ANY,
    BATCH,
    COLD,
    GROWTH,
    HIGH,
    LOW,
    WARM,
    Precision,
    Race,
    Time,
    load,
    of,
    present,
    race,
)

KINDS = {  # every softmax of the comparison, in the order of its columns
    "lm-docs": "LSTM",
    "lstm-1500": "LSTM",
    "nmt-captions": "Transformer",
    "transformer-30k": "Transformer",
    "lm-docs-70k": "LSTM",
    "synthetic-250k": "synthetic",
}
SHAPES = (
    "lm-docs",
    "lstm-1500",
    "nmt-captions",
    "nmt-software",
    "transformer-30k",
    "lm-docs-70k",
    "synthetic-250k",
)
SLICES = ("lm-docs-2000", "lm-docs-4000", "lm-docs-6000", "lm-docs-8000")


def raced(names: tuple[str, ...] | dict[str, str]) -> dict[str, Race]:
    """Those that have results."""
    return {name: race(name) for name in names if present(f"race/{name}")}


def ours(name: str) -> bool:
    return name.startswith("logitsieve ")


def library(name: str) -> bool:
    """Approximate searches, and exact ones other than a product of all of W."""
    return not ours(name) and name not in FLOAT32 and not is_narrow(name)


def against(
    time: Time | None, exact: Time | None, narrow: Time | None = None, name: bool = False
) -> str:
    """`25.9 ScaNN (4.5x)`, or `(4.5x; 1.2x)` where a quantised head took part."""
    if time is None or exact is None:
        return ABSENT
    named = f" {time.method}" if name else ""
    over = f"; {ratio(narrow.us / time.us)}x" if narrow else ""
    return plain(f"{digits(time.us)}{named} ({ratio(exact.us / time.us)}x{over})")


def quantised(narrow: Time | None, exact: Time | None) -> str:
    """`26.1 int8 scan, rescored (4.5x), P@1 0.9996, P@5 0.9981`."""
    if narrow is None:
        return ABSENT
    precision = f"P@1 {fixed(narrow.p1, 4)}, P@5 {fixed(narrow.p5, 4)}"
    return plain(f"{against(narrow, exact, name=True)}, {precision}")


def bold(cell: str) -> str:
    us, space, rest = cell.partition(" ")
    return f"**{us}**{space}{rest}" if cell else cell


def comparison(field: str = WARM) -> str:
    """µs a row of the best exact search and quantised head, of certified, the screen, a library."""
    races = raced(KINDS)
    races = {name: each for name, each in races.items() if each.exact(field=field)}
    if not races:
        return "Not measured yet.\n"
    head = [f"{KINDS[name]}, V = {it.vocab_size:,}, D = {it.dim:,}" for name, it in races.items()]

    def row(
        label: str, methods: Callable[[str], bool], precise: Precision = ANY, name: bool = False
    ) -> list[str]:
        cells = []
        for each in races.values():
            best = each.fastest(methods, precise, field=field)
            cells.append(against(best, each.exact(field=field), each.narrow(field), name))
        return [label, *map(bold, cells)] if label.startswith("`") else [label, *cells]

    screen = "logitsieve screen".__eq__
    rows = [
        ["best exact float32", *(digits(of(it.exact(field=field)).us) for it in races.values())],
        [
            "best quantised head, P@1 >= 0.98",
            *(quantised(it.narrow(field), it.exact(field=field)) for it in races.values()),
        ],
        row("`certified`: exact, proven", "logitsieve certified".__eq__),
        row("`screen`, P@1 >= 0.998 and P@5 >= 0.99", screen, HIGH),
        row("`screen`, P@1 >= 0.98", screen, LOW),
        row("best library, P@1 >= 0.998 and P@5 >= 0.99", library, HIGH, name=True),
        row("best library, P@1 >= 0.98", library, LOW, name=True),
    ]
    over = "times as fast as the best exact float32; as the best quantised head"
    return markdown([f"µs per row ({over})", *head], rows)


def certified_by_shape() -> str:
    """One row a call, then 64, each beside the best exact float32; and memory."""
    head = ["", "V", "D", "best exact", "`certified`", "B = 64", "memory"]
    rows = []
    for name, each in raced(SHAPES).items():
        exact, certified = each.exact(), each.head("certified")
        exact64, certified64 = each.exact(BATCH), each.head("certified", mode=BATCH)
        if exact is None or certified is None:
            continue
        batch = f"{digits(exact64.us)} / {against(certified64, exact64)}" if exact64 else ABSENT
        share = each.point("logitsieve certified")["bytes_beyond_w"] / each.results["weight_bytes"]
        shape = f"{each.vocab_size:,}", f"{each.dim:,}"
        memory = plain(f"{percent(share)} % of W")
        rows.append([name, *shape, digits(exact.us), against(certified, exact), batch, memory])
    return markdown(head, rows)


def growth() -> str:
    """Each vocabulary of growth.json.gz, and the slices of lm-docs."""
    races = {f"synthetic, {int(words):,}": Race(found) for words, found in load(GROWTH).items()}
    slices = {f"LSTM's {it.vocab_size:,} most frequent": it for it in raced(SLICES).values()}
    head = ["V", "best exact float32", "`exact`", "`certified`", "`screen`, P@1 >= 0.98"]
    rows = []
    for name, each in (slices | races).items():
        best, about = of(each.exact()), each.results["machine"]
        rates, l1 = about["read_GBps"], about["caches"]["L1"]
        heads = each.head("exact"), each.head("certified"), each.head("screen", LOW)
        machine = f"{l1 >> 10} KiB; {rates['L3']:.0f}, {rates['DRAM']:.0f} GB/s"
        cells = (against(time, best) for time in heads)
        rows.append([name, f"{digits(best.us)} {best.method}", *cells, machine])
    return markdown([*head, "L1; one core reads from L3, DRAM"], rows)


FAST = "logitsieve screen"


def shown(name: str) -> str:
    return f"`{name.removeprefix('logitsieve ')}`" if ours(name) else name


def screen() -> str:
    """`make bench`: each contender at each number of rows a call."""
    times = load("screen")["us_per_row"]
    rows = []
    for name in next(iter(times.values())):
        cells = [shown(name)]
        for each in times.values():
            us = each[name]["median"]
            by = "" if name == FAST else plain(f" ({ratio(us / each[FAST]['median'])}x)")
            cells.append(digits(us) + by)
        rows.append(cells)
    batches = (f"B = {batch}" for batch in times)
    return markdown(["µs per row (speed-up of the screen)", *batches], rows)


def processors() -> str:
    """The contenders of `make bench` with all that the CPU has, and held to AVX2."""
    files = {"": "screen", ", AVX2": "screen-avx2"}
    found = {label: load(name)["us_per_row"] for label, name in files.items() if present(name)}
    names = list(found[""]["1"])
    rows = []
    for batch in found[""]:
        for label, times in found.items():
            each = times[batch]
            cells = (digits(each[name]["median"]) if name in each else ABSENT for name in names)
            rows.append([f"B = {batch}{label}", *cells])
    return markdown(["µs per row", *map(shown, names)], rows)


TABLES: dict[str, Callable[[], str]] = {
    "races": comparison,
    "races, cold": lambda: comparison(COLD),
    "certified by shape": certified_by_shape,
    "growth": growth,
    "screen": screen,
    "processors": processors,
}
