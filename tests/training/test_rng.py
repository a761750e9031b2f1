"""Numbers by counter: what decides them, and that every set is equally likely."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from logitsieve.training.rng import Randomness, Step


def test_seed_step_draw_and_place_decide() -> None:
    step = Step(key=3, step=5)
    assert torch.equal(step.uniforms(7, 2), Step(key=3, step=5).uniforms(8, 2)[:7])
    for other in (Step(4, 5), Step(3, 6)):
        assert not torch.equal(step.uniforms(7, 2), other.uniforms(7, 2))
    assert not torch.equal(step.uniforms(7, 2), step.uniforms(7, 1))


def test_steps_are_counted_and_can_be_set() -> None:
    random = Randomness(seed=9)
    first, second = random.next(), random.next()
    assert (first.step, second.step, random.step) == (0, 1, 2)
    random.step = 0
    assert random.next() == first


def test_uniforms_fill_the_interval() -> None:
    drawn = Step(1, 0).uniforms(100_000)
    assert 0 < float(drawn.min()) < float(drawn.max()) < 1
    counts = torch.histc(drawn, 20, 0, 1)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 19 + 4 * (2 * 19) ** 0.5


def test_integers_are_within_range() -> None:
    drawn = Step(1, 0).integers(3, 3000)
    assert drawn.dtype == torch.int64
    assert set(drawn.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("high", "count"), [(5, 5), (1, 1), (1000, 0), (1000, 900), (10**12, 50)])
def test_distinct_numbers_are(high: int, count: int) -> None:
    drawn = Step(1, 0).distinct(high, count)
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert all(0 <= number < high for number in drawn.tolist())


def test_every_set_outside_is_equally_likely() -> None:
    excluded, trials = torch.tensor([0, 3, 4]), 6000
    allowed = [1, 2, 5, 6]
    counts = dict.fromkeys(combinations(allowed, 2), 0)
    for step in range(trials):
        drawn = Step(1, step).distinct_outside(excluded, 7, 2)
        counts[tuple(sorted(drawn.tolist()))] += 1
    expected = trials / len(counts)
    chi = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi < 5 + 4 * (2 * 5) ** 0.5


def test_all_that_is_outside() -> None:
    drawn = Step(1, 0).distinct_outside(torch.tensor([2, 5]), 6, 4)
    assert sorted(drawn.tolist()) == [0, 1, 3, 4]
