from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from logitsieve.server.precision.drift_guard import FIRST, WINDOW, DriftGuard, Evidence
from tests.evaluation.test_operating_points import make_point


def rows(precision: float, seed: int, k: int = 1) -> Iterator[float]:
    random = np.random.default_rng(seed)
    while True:
        yield float((random.random(k) < precision).mean())


def refuted_after(target: float, precision: float, seed: int, most: int, k: int = 1) -> int:
    """Rows until a point of this true precision is refuted at `target`; `most` if it is not."""
    evidence = Evidence()
    for row, share in zip(range(most), rows(precision, seed, k), strict=False):
        evidence.add(share)
        if evidence.ceiling < target:
            return row + 1
    return most


@pytest.mark.parametrize(("target", "k"), [(0.998, 1), (0.99, 5), (0.9, 1)])
def test_noise_does_not_refute_a_point_that_is_just_precise_enough(target: float, k: int) -> None:
    found = [refuted_after(target, target, seed, WINDOW, k) for seed in range(60)]
    assert sum(rows < WINDOW for rows in found) <= 6


def test_a_drift_is_seen_at_the_second_look_and_a_small_one_within_some_windows() -> None:
    assert {refuted_after(0.99, 0.6, seed, WINDOW) for seed in range(20)} == {2 * FIRST}
    assert max(refuted_after(0.99, 0.96, seed, 5 * WINDOW) for seed in range(20)) <= 2 * WINDOW


def test_the_ceiling_is_above_what_is_true_and_comes_near_it() -> None:
    evidence = Evidence()
    for _, share in zip(range(WINDOW), rows(0.8, 0), strict=False):
        evidence.add(share)
    assert 0.78 < evidence.ceiling < 0.86


def test_a_point_returns_when_a_whole_window_is_precise() -> None:
    evidence = Evidence()
    for _ in range(WINDOW):
        evidence.add(0.0)
    for row in range(WINDOW):
        assert evidence.ceiling < 0.05, row
        evidence.add(float(row > 0))
    assert evidence.ceiling == 1 - 1 / WINDOW


def test_ks_and_points_are_judged_apart() -> None:
    guard, point = DriftGuard(), make_point("screen", probes=1)
    other = make_point("screen", probes=2)
    for _ in range(2 * FIRST):
        guard.add(point, {1: 1.0, 5: 0.2})  # type: ignore[arg-type]  # has what is looked at
    assert guard.ceiling(point, 1) == 1.0
    assert guard.ceiling(point, 5) < 0.5
    assert guard.ceiling(point, 10) == guard.ceiling(other, 5) == 1.0
