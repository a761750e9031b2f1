from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.evaluation.operating_points import (
    BEYOND,
    KS,
    Chooser,
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
    proven: bool = False,
    **knobs: float,
) -> OperatingPoint:
    """Times at 1, 8 and 64 rows; bounds of P@1, P@5 and P@10."""
    return OperatingPoint(
        head=head,
        knobs=knobs,
        proven=proven,
        mean=dict(zip(KS, low, strict=True)),
        low=dict(zip(KS, low, strict=True)),
        us_per_row=dict(zip((1, 8, 64), us, strict=True)),
        mass_kept=0.9,
        candidates=10.0,
    )


EXACT = make_point("exact", (100, 100, 40), (1, 1, 1), proven=True)
CERTIFIED = make_point("certified", (20, 22, 50), (1, 1, 1), proven=True)
FAST = make_point("screen", (2, 1, 1), (0.98, 0.95, 0.9), probes=1)
WIDE = make_point("screen", (4, 2, 2), (0.999, 0.995, 0.99), probes=4)
BATCHED = make_point("svd", (9, 3, 0.5), (0.999, 0.995, 0.99))
POINTS = [EXACT, CERTIFIED, FAST, WIDE, BATCHED]


def entry(rows: int, us: float, **changes: Any) -> dict[str, Any]:
    return {
        "head": {"name": "screen", "knobs": {"probes": 2.0}},
        "rows": rows,
        "us_per_row": us,
        "precision_at": {"1": 0.98},
        "precision": {"1": {"mean": 0.98, "low": 0.97}},
        "mass_kept": 0.9,
        "candidates": 30.0,
        **changes,
    }


def test_entries_of_one_setting_become_one_point() -> None:
    other = entry(1, 3.0, head={"name": "screen", "knobs": {"probes": 3.0}}, proven=True)
    first, second = read_points([entry(1, 2.0), other, entry(64, 1.0)])
    assert (first.head, first.knobs, first.label) == ("screen", {"probes": 2.0}, "screen probes=2")
    assert (first.us_per_row, first.mean, first.low) == ({1: 2.0, 64: 1.0}, {1: 0.98}, {1: 0.97})
    assert (first.proven, second.proven) == (False, True)
    assert (first.us_at(2), first.us_at(1000)) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ({}, {}),
        ({"target_precision": {}}, {}),
        ({"target_precision": None}, {}),
        ({"target_precision": {"p1": 0.998, "p10": 1, "p7": 0.1}}, {1: 0.998, 10: 1.0}),
        ({"target_precision": {"p1": "high", "p5": 2.0}}, {}),
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
    assert Chooser(POINTS).batch(rows) == expected


def test_no_rows_are_no_reason_to_fail() -> None:
    assert Chooser(POINTS).batch(0) == 1


@pytest.mark.parametrize(
    ("batch", "k", "precision", "expected"),
    [
        (1, 1, 0.98, FAST),
        (1, 1, 0.981, WIDE),
        (1, 5, 0.96, WIDE),
        (8, 10, 0.9, FAST),
        (64, 1, 0.99, BATCHED),
        (1, 1, 0.9999, CERTIFIED),
        (64, 1, 0.9999, EXACT),
        (1, 1, 1.0, CERTIFIED),
        (1, BEYOND, 0.5, CERTIFIED),
        (64, BEYOND, 1e-9, EXACT),
    ],
)
def test_the_cheapest_point_that_is_precise_enough(
    batch: int, k: int, precision: float, expected: OperatingPoint
) -> None:
    assert Chooser(POINTS).choose(batch, k, precision) is expected


def test_the_indexs_own_target_is_met_whole_whatever_k_is() -> None:
    chooser = Chooser(POINTS, {1: 0.9, 5: 0.99})
    assert [chooser.choose(1, k, None) for k in (*KS, BEYOND)] == [WIDE] * 4
    assert chooser.choose(64, 1, None) is BATCHED
    assert Chooser(POINTS, {5: 1.0}).choose(1, 1, None) is CERTIFIED


def test_what_measurements_cannot_decide() -> None:
    assert Chooser(POINTS).choose(1, 1, None) is None
    assert Chooser([FAST]).choose(1, 1, 1.0) is None
    assert Chooser([]).choose(Chooser([]).batch(100), 1, 0.5) is None


def test_luck_is_no_proof() -> None:
    lucky = make_point("screen", (1, 1, 1), (1.0, 1.0, 1.0))
    assert Chooser([lucky, EXACT]).choose(1, 1, 1.0) is EXACT
    assert Chooser([lucky, EXACT]).choose(1, 1, 0.99999) is lucky


def test_of_equal_times_the_proven_point_is_taken() -> None:
    equal = make_point("screen", (20, 22, 50))
    assert Chooser([equal, CERTIFIED]).choose(1, 1, 0.5) is CERTIFIED


def test_a_batch_that_a_point_was_not_timed_at_takes_its_nearest() -> None:
    one = make_point("exact", proven=True)
    few = OperatingPoint(**{**vars(one), "us_per_row": {8: 0.5}})
    assert Chooser([one, few]).choose(64, 1, 1.0) is few


def test_dominated_points_are_dropped() -> None:
    worse = make_point("screen", (2, 1, 1.5), (0.97, 0.95, 0.9), probes=2)
    twin = make_point("screen", (2, 1, 1), (0.98, 0.95, 0.9), probes=3)
    assert undominated([worse, *POINTS, twin]) == POINTS


def test_a_proven_point_stays_however_slow() -> None:
    lucky = make_point("screen", (1, 1, 1), (1.0, 1.0, 1.0))
    slow = make_point("exact", (900, 900, 900), (1, 1, 1), proven=True)
    assert undominated([lucky, EXACT, slow]) == [lucky, EXACT]


def points_strategy() -> st.SearchStrategy[list[OperatingPoint]]:
    few = st.sampled_from([1.0, 2.0, 3.0])
    low = st.sampled_from([0.5, 0.9, 0.99])
    unproven = st.builds(
        make_point, us=st.tuples(few, few, few), low=st.tuples(low, low, low), probes=few
    )
    proven = st.builds(
        lambda us: make_point("exact", us, (1, 1, 1), proven=True), st.tuples(few, few, few)
    )
    return st.lists(st.one_of(unproven, proven), min_size=1, max_size=12)


@given(points_strategy(), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_dropping_dominated_points_makes_no_choice_dearer(
    points: list[OperatingPoint], precision: float
) -> None:
    whole, kept = Chooser(points), Chooser(undominated(points))
    for batch in (1, 8, 64):
        for k in (*KS, BEYOND):
            one, other = (each.choose(batch, k, precision) for each in (whole, kept))
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert other.us_at(batch) == one.us_at(batch)
                assert other.meets(precision, k)


def downgraded(chooser: Chooser, points: OperatingPoint) -> list[str]:
    goal, found = {1: 0.9}, [points]
    while (safer := chooser.next_safer(found[-1], 1, goal)) is not None:
        found.append(safer)
    return [point.label for point in found]


def test_steps_to_safety_halve_the_misses_and_end_in_a_proof() -> None:
    chooser = Chooser(
        [
            make_point("a", (1, 1, 1), (0.9, 0.9, 0.9)),
            make_point("b", (2, 1, 1), (0.94, 0.9, 0.9)),
            make_point("c", (3, 1, 1), (0.96, 0.9, 0.9)),
            make_point("d", (4, 1, 1), (1.0, 1.0, 1.0)),
            make_point("e", (5, 1, 1), (1.0, 1.0, 1.0)),
            CERTIFIED,
            EXACT,
        ]
    )
    assert downgraded(chooser, chooser.points[0]) == ["a", "c", "d", "certified"]
    assert downgraded(chooser, chooser.points[4]) == ["e", "certified"]


def test_without_a_proven_point_steps_end_all_the_same() -> None:
    chooser = Chooser([FAST, WIDE])
    assert downgraded(chooser, FAST) == ["screen probes=1", "screen probes=4"]
