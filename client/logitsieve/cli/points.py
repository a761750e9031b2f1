from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from logitsieve.api.keywords import MAX_ERROR
from logitsieve.cli.output import print_table, shown
from logitsieve.evaluation.operating_points import BEYOND, KS, OperatingPoint, Setting
from logitsieve.evaluation.precision import wilson

if TYPE_CHECKING:
    from logitsieve.decoding.auto import Auto
    from logitsieve.index import Index

Choice = dict[str, Any]

PRICED = 0.998, 0.999, 0.9995  # values of P@1 for which times are printed
K_LABELS = {1: "1", 5: "2-5", 10: "6-10", BEYOND: "11 or more"}


def auto_of(index: Index) -> Auto:
    from logitsieve.decoding import LocalDecoder

    return LocalDecoder(index).auto


def print_points(index: Index, bounds: bool = False) -> None:
    """Print a line for each operating point; `bounds` adds the lower 95 % bound of each P@k."""
    calibration = index.measured
    if calibration is None:
        return
    from logitsieve.decoding import measured_elsewhere

    auto = auto_of(index)
    marks = _marks(auto)
    batches = sorted({batch for point in auto.points for batch in point.us_per_row})
    rows = [
        [
            point.label,
            *(_precision(point, k, bounds) for k in KS),
            None if point.proven else point.mass_kept,
            point.candidates_at(1),
            *(point.us_per_row.get(batch) for batch in batches),
            "yes" if point.proven else "no",
            marks.get(point.setting, ""),
        ]
        for point in sorted(auto.points, key=lambda each: each.us_at(auto.batches[0]))
    ]
    columns = ["head", *(f"P@{k}" for k in KS), "mass", "rows"]
    print_table(
        f"{calibration['heldout_rows']:,} held-out contexts, {calibration['machine']['cpu']}\n"
        "mass: probability kept; rows: rows of W read; "
        "B: us per row at B rows per call; "
        f"{'in brackets: the lower 95 % bound, which counts; ' if bounds else ''}"
        f"AUTO: where it takes the point ({goal(auto, None)})",
        [*columns, *(f"B={batch}" for batch in batches), "proven", "AUTO"],
        rows,
    )
    prices = [(least, {**auto.choices(least, KS[:1])[0], "knobs": {}}) for least in PRICED]
    costs = "; ".join(f"P@1 >= {least:g} {_words(choice)}" for least, choice in prices)
    print(f"Cost of precision at B={auto.batches[0]}: {costs}")
    graded = sorted(
        (each.max_error, each.us_at(1)) for each in auto.points if each.head == "sketch"
    )
    if graded:
        times = ", ".join(f"{max_error:g}: {shown(us)} us" for max_error, us in graded)
        print(f"Cost of max_error of sketch at B=1: {times}")
    shown_at_most = wilson(1.0, calibration["heldout_rows"])
    if shown_at_most < max(PRICED):
        print(
            f"{calibration['heldout_rows']:,} held-out contexts without a miss show"
            f" P@1 >= {shown_at_most:.4f}: above it only a proof counts"
        )
    if elsewhere := measured_elsewhere(index):
        print(f"Warning: times are those of another machine, {elsewhere}; `tune` measures here")
    if any(point["uneven"] for point in calibration["points"]):
        print("Warning: precision varies between blocks; were the contexts spread?")


def _precision(point: OperatingPoint, k: int, bounds: bool) -> object:
    mean, low = point.mean.get(k), point.low.get(k)
    return mean if not bounds or mean is None or low is None else f"{mean:.4f} ({low:.4f})"


def _marks(auto: Auto) -> dict[Setting, str]:
    marks: dict[Setting, list[str]] = {}
    for batch in auto.batches:
        marks.setdefault(auto.choose(batch, BEYOND, None), []).append(f"{batch}")
    return {key: "B=" + ", ".join(batches) for key, batches in marks.items()}


def choices(
    auto: Auto, precision: float | None, ks: tuple[int, ...], max_error: float | None = None
) -> list[Choice]:
    return [
        choice | {"k": "any" if precision is None else K_LABELS[choice["k"]]}
        for choice in auto.choices(precision, ks, max_error)
    ]


def print_choices(title: str, taken: list[Choice]) -> None:
    batches = list(dict.fromkeys(choice["rows"] for choice in taken))
    lines: dict[str, list[str]] = {}
    for choice in taken:
        lines.setdefault(choice["k"], []).append(_words(choice))
    rows = [[k, *cells] for k, cells in lines.items()]
    print_table(title, ["k", *(f"B={batch}" for batch in batches)], rows)


def _words(choice: Choice) -> str:
    knobs = [f"{name}={value:g}" for name, value in choice["knobs"].items()]
    us = "" if choice["us_per_row"] is None else f", {shown(choice['us_per_row'])} us"
    return " ".join([choice["head"], *knobs]) + us


def goal(auto: Auto, precision: float | None, max_error: float | None = None) -> str:
    if precision is not None:
        return "asked for a proof" if precision == 1 else f"asked for P@k >= {precision:g}"
    if not auto.target or max_error is not None:
        most = MAX_ERROR if max_error is None else max_error
        return f"wrong with a chance of at most {most:g}" if most else "proven"
    return "for the index's target, " + ", ".join(f"P@{k} >= {p:g}" for k, p in auto.target.items())


def without_contexts(calibration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `calibration` with the size of its contexts in place of their numbers."""
    if calibration is None or "contexts" not in calibration:
        return None if calibration is None else dict(calibration)
    contexts = {name: calibration["contexts"][name] for name in ("rows", "dim")}
    return {**calibration, "contexts": contexts}
