"""Tables of operating points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from logitsieve.cli.output import print_table
from logitsieve.evaluation.operating_points import BEYOND, KS, OperatingPoint, Setting

if TYPE_CHECKING:
    from logitsieve.decoding.auto import Auto
    from logitsieve.index import Index


def auto_of(index: Index) -> Auto:
    from logitsieve.decoding import LocalDecoder

    return LocalDecoder(index).auto


def print_points(index: Index, bounds: bool = False) -> None:
    """Print a line for each operating point, if the index was calibrated.

    With `bounds`, each P@k is followed by its lower 95 % bound in brackets.
    """
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
            point.mass_kept,
            point.candidates,
            *(point.us_per_row.get(batch) for batch in batches),
            "yes" if point.proven else "no",
            marks.get(point.setting, ""),
        ]
        for point in sorted(auto.points, key=lambda each: each.us_at(auto.batches[0]))
    ]
    columns = ["head", *(f"P@{k}" for k in KS), "mass", "rows"]
    print_table(
        f"{calibration['heldout_rows']:,} held-out contexts, {calibration['machine']['cpu']}\n"
        "mass: probability kept; rows: rows of W read; B: us per row at B rows per call; "
        f"{'in brackets: the lower 95 % bound, which counts; ' if bounds else ''}"
        f"AUTO: where it takes the point ({goal(auto)})",
        [*columns, *(f"B={batch}" for batch in batches), "proven", "AUTO"],
        rows,
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
        marks.setdefault(auto.choose(batch, BEYOND, None), []).append(f"B={batch}")
    return {key: ", ".join(batches) for key, batches in marks.items()}


def goal(auto: Auto) -> str:
    if not auto.target:
        return "no target: the default head or a faster proof"
    return "for the index's target, " + ", ".join(f"P@{k} >= {p:g}" for k, p in auto.target.items())


def without_contexts(calibration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a printable `calibration`: the size of its contexts, not their numbers."""
    if calibration is None or "contexts" not in calibration:
        return None if calibration is None else dict(calibration)
    contexts = {name: calibration["contexts"][name] for name in ("rows", "dim")}
    return {**calibration, "contexts": contexts}
