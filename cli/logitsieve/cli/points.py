"""The table of operating points, and what AUTO makes of them, as the commands print both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logitsieve.cli.console import print_table, shown
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.auto import Auto
from logitsieve.evaluation import read_points
from logitsieve.evaluation.operating_points import BEYOND, KS
from logitsieve.index import Index

Choice = dict[str, Any]

K_LABELS = {1: "1", 5: "2-5", 10: "6-10", BEYOND: "11 or more"}


def print_points(index: Index) -> None:
    """One line an operating point, comparisons too; nothing where the index was not calibrated."""
    calibration = index.measured
    if calibration is None:
        return
    auto = LocalDecoder(index).auto
    marks = _marks(auto)
    compared = read_points(calibration["compared"])
    batches = sorted({batch for point in (*auto.points, *compared) for batch in point.us_per_row})
    rows = [
        [
            point.label,
            *(point.mean.get(k) for k in KS),
            point.mass_kept,
            point.candidates,
            *(point.us_per_row.get(batch) for batch in batches),
            "yes" if point.proven else "no",
            marks.get(_key(point.head, point.knobs), "") if point in auto.points else "compared",
        ]
        for point in (*auto.points, *compared)
    ]
    print_table(
        f"{calibration['heldout_rows']:,} held-out contexts, {calibration['machine']['cpu']}\n"
        "mass: probability kept; rows: of W, looked at; B: us a row at B rows a call; "
        f"AUTO: where it takes the point ({goal(auto, None)})",
        [
            "head",
            *(f"P@{k}" for k in KS),
            "mass",
            "rows",
            *(f"B={batch}" for batch in batches),
            "proven",
            "AUTO",
        ],
        rows,
    )
    if any(point["uneven"] for point in calibration["points"]):
        print("Warning: precision varies between blocks; were the contexts spread?")


def _marks(auto: Auto) -> dict[object, str]:
    """The batch sizes at which AUTO takes a point for the index's own target."""
    found: dict[object, list[str]] = {}
    for batch in auto.batches:
        point = auto.engine((batch, BEYOND), None, "")
        found.setdefault(_key(point.head, point.knobs), []).append(f"B={batch}")
    return {key: ", ".join(marks) for key, marks in found.items()}


def choices(auto: Auto, precision: float | None, ks: tuple[int, ...]) -> list[Choice]:
    """What AUTO takes for each class of k and each batch size; `us_per_row` where it is known."""
    measured = {_key(point.head, point.knobs): point for point in auto.points}
    found = []
    for k in ks:
        for batch in auto.batches:
            point = auto.engine((batch, k), precision, "")
            at = measured.get(_key(point.head, point.knobs))
            found.append(
                {
                    "k": "any" if precision is None else K_LABELS[k],
                    "rows": batch,
                    "head": point.head,
                    "knobs": dict(point.knobs),
                    "us_per_row": at.us_at(batch) if at else None,
                    "precision_low": dict(at.low) if at else None,
                    "proven": point.proves,
                }
            )
    return found


def print_choices(title: str, found: list[Choice]) -> None:
    """A line for each k, a column for each batch size."""
    batches = list(dict.fromkeys(choice["rows"] for choice in found))
    lines: dict[str, list[str]] = {}
    for choice in found:
        knobs = [f"{name}={value:g}" for name, value in choice["knobs"].items()]
        us = "" if choice["us_per_row"] is None else f", {shown(choice['us_per_row'])} us"
        lines.setdefault(choice["k"], []).append(" ".join([choice["head"], *knobs]) + us)
    rows = [[k, *cells] for k, cells in lines.items()]
    print_table(title, ["k", *(f"B={batch}" for batch in batches)], rows)


def goal(auto: Auto, precision: float | None) -> str:
    """What AUTO is to meet, in words."""
    if precision is not None:
        return "asked for a proof" if precision == 1 else f"asked for P@k >= {precision:g}"
    if not auto.target:
        return "no target: the default head"
    return "for the index's target, " + ", ".join(f"P@{k} >= {p:g}" for k, p in auto.target.items())


def without_contexts(calibration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`calibration` for people: of the contexts in it only how many there are."""
    if calibration is None or "contexts" not in calibration:
        return None if calibration is None else dict(calibration)
    contexts = {name: calibration["contexts"][name] for name in ("rows", "dim")}
    return {**calibration, "contexts": contexts}


def _key(head: str, knobs: Mapping[str, float]) -> tuple[str, frozenset[tuple[str, float]]]:
    return head, frozenset(knobs.items())
