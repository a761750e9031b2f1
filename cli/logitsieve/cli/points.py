"""Tables of operating points, and of the points that AUTO takes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from logitsieve.cli.output import print_table, shown
from logitsieve.evaluation import read_points
from logitsieve.evaluation.evidence import MeasuredPrecision, contradicts, rows_needed
from logitsieve.evaluation.operating_points import BEYOND, KS, OperatingPoint

if TYPE_CHECKING:
    from logitsieve.decoding.auto import Auto
    from logitsieve.index import Index

Choice = dict[str, Any]

K_LABELS = {1: "1", 5: "2-5", 10: "6-10", BEYOND: "11 or more"}


def auto_of(index: Index) -> Auto:
    from logitsieve.decoding import decoder_of

    return decoder_of(index).auto


def print_points(index: Index, bounds: bool = False) -> None:
    """Print a line for each operating point and comparison; nothing without a calibration.

    With `bounds`, each P@k is followed by its lower 95 % bound in brackets.
    """
    calibration = index.measured
    if calibration is None:
        return
    from logitsieve.decoding import measured_elsewhere

    auto = auto_of(index)
    marks = _marks(auto)
    compared = read_points(calibration["compared"])
    batches = sorted({batch for point in (*auto.points, *compared) for batch in point.us_per_row})
    rows = [
        [
            point.label,
            *(_precision(point, k, bounds) for k in KS),
            point.mass_kept,
            point.candidates,
            *(point.us_per_row.get(batch) for batch in batches),
            "yes" if point.proven else "no",
            marks.get(_key(point.head, point.knobs), "") if point in auto.points else "compared",
        ]
        for point in (*auto.points, *compared)
    ]
    columns = ["head", *(f"P@{k}" for k in KS), "mass", "rows"]
    print_table(
        f"{calibration['heldout_rows']:,} held-out contexts, {calibration['machine']['cpu']}\n"
        "mass: probability kept; rows: rows of W read; B: us per row at B rows per call; "
        f"{'in brackets: lower 95 % bounds, the build counting; ' if bounds else ''}"
        f"AUTO: where it takes the point ({goal(auto, None)})",
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


def _marks(auto: Auto) -> dict[object, str]:
    """The batch sizes at which AUTO takes a point for the index's own target."""
    marks: dict[object, list[str]] = {}
    for batch in auto.batches:
        point = auto.engine((batch, BEYOND), None, "")
        marks.setdefault(_key(point.head, point.knobs), []).append(f"B={batch}")
    return {key: ", ".join(batches) for key, batches in marks.items()}


def choices(
    auto: Auto, precision: float | None, ks: tuple[int, ...], batches: tuple[int, ...] = ()
) -> list[Choice]:
    """AUTO's point for each class of k and each batch size; `us_per_row` is None if unmeasured."""
    measured = {_key(point.head, point.knobs): point for point in auto.points}
    taken = []
    for k, batch in product(ks, batches or auto.batches):
        point = auto.engine((batch, k), precision, "")
        timed = measured.get(_key(point.head, point.knobs))
        choice = {
            "k": "any" if precision is None else K_LABELS[k],
            "rows": batch,
            "head": point.head,
            "knobs": dict(point.knobs),
            "us_per_row": timed.us_at(batch) if timed else None,
            "precision_low": dict(timed.low) if timed else None,
            "proven": point.proves,
        }
        taken.append(choice)
    return taken


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


def print_changes(before: Index, after: Index) -> None:
    """Print AUTO's points before and after a sweep, and why it leaves those that it took before."""
    old, new = auto_of(before), auto_of(after)
    rows = []
    for batch in new.batches:
        was, now = (choices(auto, None, (BEYOND,), (batch,))[0] for auto in (old, new))
        rows.append([f"B={batch}", _words(was), "->", _words(now)])
    print_table(f"AUTO before and after, {goal(new, None)}", ["", "before", "", "after"], rows)
    for warning in undecided(before, after):
        print(f"Warning: {warning}")


def undecided(before: Index, after: Index) -> list[str]:
    """Why AUTO leaves the stored point, and those that it took before, and what would decide."""
    old, new = auto_of(before), auto_of(after)
    taken = {
        _key(choice["head"], choice["knobs"])
        for choice in choices(old, None, (BEYOND,), new.batches)
    }
    stored = after.head()
    taken.add(_key(stored.name, stored.knobs))
    calibration, warnings = after.measured or {}, []
    for point in new.points:
        if point.proven or _key(point.head, point.knobs) not in taken:
            continue
        entry = next(
            entry
            for entry in calibration["points"]
            if entry["head"]["name"] == point.head
            and entry["head"]["knobs"].items() <= point.knobs.items()
        )
        for k, wanted in new.target.items():
            if (low := point.low.get(k, 0.0)) < wanted:
                warnings.append(
                    f"on these contexts the point {point.label} ({_times(point)}) is not proven to "
                    f"meet the target: the lower bound of P@{k} is {low:.4f} < {wanted:g}, so AUTO "
                    "takes slower points. "
                    + _decider(entry["precision"][str(k)], calibration["heldout_rows"], k, wanted)
                )
    return warnings


def _times(point: OperatingPoint) -> str:
    return ", ".join(f"{shown(us)} us at B={batch}" for batch, us in point.us_per_row.items())


def _decider(precision: Mapping[str, Any], rows: int, k: int, wanted: float) -> str:
    """Say whether the build's contexts are contradicted, and how many more would decide."""
    new = MeasuredPrecision(precision["mean"], precision.get("low_here", precision["low"]), rows)
    before, said = precision.get("built"), ""
    built = MeasuredPrecision(before["mean"], before["low"], before["rows"]) if before else None
    if built is not None and contradicts(new, built):
        said = (
            f"These {rows:,} contexts contradict the build's {built.rows:,}, on which P@{k} was "
            f"{built.mean:.4f} and here {new.mean:.4f}. "
        )
    needed = rows_needed(new, built, wanted)
    if needed is None:
        return f"{said}More contexts would not change that: P@{k} here is {new.mean:.4f}."
    return f"{said}About {needed - rows:,} more contexts like these would decide (--rows {needed})."


def goal(auto: Auto, precision: float | None) -> str:
    if precision is not None:
        return "asked for a proof" if precision == 1 else f"asked for P@k >= {precision:g}"
    if not auto.target:
        return "no target: the default head"
    return "for the index's target, " + ", ".join(f"P@{k} >= {p:g}" for k, p in auto.target.items())


def without_contexts(calibration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`calibration` for printing: the size of its contexts instead of their numbers."""
    if calibration is None or "contexts" not in calibration:
        return None if calibration is None else dict(calibration)
    contexts = {name: calibration["contexts"][name] for name in ("rows", "dim")}
    return {**calibration, "contexts": contexts}


def _key(head: str, knobs: Mapping[str, float]) -> tuple[str, frozenset[tuple[str, float]]]:
    return head, frozenset(knobs.items())
