from dataclasses import replace
from typing import Any

import pytest

from logitsieve.evaluation.operating_points import (
    BEYOND,
    KS,
    OperatingPoint,
    k_class,
    nearest,
    read_points,
    read_target,
    undominated,
)


def make_point(
    head: str = "screen",
    us: tuple[float, ...] = (1, 1, 1),
    low: tuple[float, ...] = (0.9, 0.9, 0.9),
    *,
    max_error: float = 1.0,
    step: tuple[float, ...] = (),
    step_low: float = 0.0,
    **knobs: float,
) -> OperatingPoint:
    """Times at 1, 8 and 64 rows, also of beam steps; bounds of P@1, P@5 and P@10."""
    if head == "sketch":
        knobs["max_error"] = max_error
    bounds, times = dict(zip(KS, low, strict=True)), dict(zip((1, 8, 64), us, strict=True))
    return OperatingPoint(
        head=head, knobs=knobs, max_error=max_error, mean=bounds, low=bounds, us_per_row=times,
        mass_kept=0.9, candidates=dict.fromkeys(times, 300.0 if head == "full" else 10.0),
        step_low=step_low, step_us=dict(zip(times, step, strict=False)),
    )  # fmt: skip


FULL = make_point("full", (100, 100, 40), (1, 1, 1), max_error=0)
PROOF = make_point("sketch", (20, 22, 50), (1, 1, 1), max_error=0)
FAST = make_point("screen", (2, 1, 1), (0.98, 0.95, 0.9), probes=1)
WIDE = make_point("screen", (4, 2, 2), (0.999, 0.995, 0.99), probes=4)
BATCHED = make_point("svd", (9, 3, 0.5), (0.999, 0.995, 0.99))
POINTS = [FULL, PROOF, FAST, WIDE, BATCHED]


def entry(rows: int, us: float, **changes: Any) -> dict[str, Any]:
    measured = {"rows": rows, "us_per_row": us, "mass_kept": 0.9, "candidates": 30.0}
    measured |= {"max_error": 1.0, **changes}
    precision = {"1": {"mean": 0.98, "low": 0.97}}
    return {"head": {"name": "screen", "knobs": {"probes": 2.0}}, "precision": precision} | measured


def test_entries_of_one_setting_become_one_point() -> None:
    other = entry(1, 3.0, head={"name": "screen", "knobs": {"probes": 3.0}}, max_error=0.0)
    first, second = read_points([entry(1, 2.0), other, entry(64, 1.0)])
    assert (first.head, first.knobs, first.label) == ("screen", {"probes": 2.0}, "screen probes=2")
    assert (first.us_per_row, first.mean, first.low) == ({1: 2.0, 64: 1.0}, {1: 0.98}, {1: 0.97})
    assert (first.proven, second.proven) == (False, True)
    assert (first.us_at(2), first.us_at(1000)) == (2.0, 1.0)
    first, _ = read_points([entry(1, 2.0), entry(8, 2.0, candidates=90.0), other])
    assert [first.candidates_at(rows) for rows in (1, 2, 8, 64)] == [30.0, 30.0, 90.0, 90.0]


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ({}, {}),
        ({"target_precision": {}}, {}),
        ({"target_precision": None}, {}),
        ({"target_precision": {"p1": 0.998, "p10": 1, "p7": 0.1}}, {1: 0.998, 10: 1.0}),
        ({"target_precision": {"p1": "high", "p5": 2.0, "p10": 0}}, {}),
    ],
)
def test_the_target_of_an_index(config: dict[str, Any], target: dict[int, float]) -> None:
    assert read_target(config) == target


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 1), (2, 5), (5, 5), (6, 10), (10, 10), (11, BEYOND), (10**9, BEYOND)]
)
def test_an_asked_k_is_rounded_up(k: int, expected: int) -> None:
    assert k_class(k) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (2, 1), (3, 8), (8, 8), (22, 8), (23, 64), (64, 64), (10**6, 64)]
)
def test_the_nearest_batch_is_nearest_in_ratio(rows: int, expected: int) -> None:
    assert nearest([1, 8, 64], rows) == expected
    assert nearest([4, 16], 8) == 4


def test_dominated_points_are_dropped_and_proven_ones_stay() -> None:
    worse = make_point("screen", (2, 1, 1.5), (0.97, 0.95, 0.9), probes=2)
    twin = make_point("screen", (2, 1, 1), (0.98, 0.95, 0.9), probes=3)
    assert undominated([worse, *POINTS, twin]) == POINTS
    elsewhere = replace(FAST, us_per_row={8: 0.5})  # not measured at all batch sizes,
    unknown = replace(FAST, us_per_row={1: 0.5, 8: 0.5, 64: 0.5}, low={1: 1.0})  # nor at all k
    assert undominated([elsewhere, unknown, FAST]) == [elsewhere, unknown, FAST]
    lucky = make_point("screen", (1, 1, 1), (1.0, 1.0, 1.0))
    slow = make_point("full", (900, 900, 900), (1, 1, 1), max_error=0)
    assert undominated([lucky, FULL, slow]) == [lucky, FULL]
    near = make_point("sketch", (110, 110, 41), (1, 1, 1), max_error=0)  # AUTO may prefer it
    assert undominated([FULL, near]) == [FULL, near]


def test_a_grade_is_dominated_by_as_sure_a_point_alone() -> None:
    one, other = (make_point("sketch", low=(0.9,) * 3, max_error=e) for e in (1e-15, 1e-3))
    screen = make_point("screen", (0.5, 0.5, 0.5), (1, 1, 1))
    assert undominated([one, screen]) == [one, screen]
    assert undominated([other, one]) == [one]
    assert undominated([replace(other, us_per_row={1: 0.5, 8: 0.5, 64: 0.5}), one])[1:] == [one]
