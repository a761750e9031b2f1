from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.evaluation.precision import block_means, lower_bound, student95, summarize, wilson


@pytest.mark.parametrize(("freedom", "expected"), [(4, 2.132), (9, 1.833), (19, 1.729)])
def test_student_s_points(freedom: int, expected: float) -> None:
    """Against the printed tables."""
    assert student95(freedom) == pytest.approx(expected, abs=0.003)


def test_no_miss_is_not_certainty() -> None:
    assert lower_bound(np.ones(100)) == pytest.approx(wilson(1.0, 100))
    assert 0.9 < lower_bound(np.ones(100)) < lower_bound(np.ones(10_000)) < 1


@given(st.lists(st.sampled_from([0.0, 0.2, 0.8, 1.0]), min_size=1, max_size=300))
def test_the_bound_is_a_share_below_the_mean(shares: list[float]) -> None:
    share = np.array(shares)
    assert 0 <= lower_bound(share) <= share.mean() + 1e-12


def test_the_bound_holds_in_95_of_100_cases_for_correlated_rows() -> None:
    """Rows come in runs of 25 that are right or wrong together."""
    random = np.random.default_rng(1)
    below = 0
    for _ in range(400):
        runs = random.random(200) < 0.9
        below += lower_bound(np.repeat(runs, 25).astype(float)) <= 0.9
    assert below / 400 >= 0.92


def test_correlated_rows_are_less_sure() -> None:
    random = np.random.default_rng(2)
    runs = (random.random(200) < 0.9).astype(float)
    together = np.repeat(runs, 25)
    assert lower_bound(together) < lower_bound(random.permutation(together)) - 0.005


def test_blocks_are_contiguous_and_cover_all() -> None:
    share = np.arange(103) / 103
    means = block_means(share)
    assert (np.diff(means) > 0).all()
    assert len(means) == 10
    assert len(block_means(np.ones(3))) == 1
    assert len(block_means(np.ones(10_000))) == 20


def test_a_block_far_below_the_others_is_reported() -> None:
    share = (np.random.default_rng(3).random(10_000) < 0.99).astype(float)
    assert not summarize(share).uneven
    share[4000:4500] *= np.random.default_rng(4).random(500) < 0.9
    found = summarize(share)
    assert found.uneven
    assert found.worst < 0.92 < found.mean < found.best
