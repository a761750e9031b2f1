"""A decoder whose index is on a GPU answers arrays as the one on the host."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.decoding import LocalDecoder
from tests.synthetic import make_hidden

HIDDEN = make_hidden(4, 12)
Pair = tuple[LocalDecoder, LocalDecoder]


@pytest.mark.parametrize("head", ["exact", "certified", "screen"])
def test_topk(pair: Pair, head: str) -> None:
    gpu, host = (each.topk(HIDDEN, 3, head=head, normalizer="exact") for each in pair)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    np.testing.assert_array_equal(gpu.logits, host.logits)
    np.testing.assert_array_equal(gpu.answer.exact, host.answer.exact)
    np.testing.assert_array_equal(gpu.answer.fallback, host.answer.fallback)
    assert gpu.answer.log_z is not None
    assert host.answer.log_z is not None
    np.testing.assert_allclose(gpu.answer.log_z, host.answer.log_z, rtol=3e-7)


def test_constraints(pair: Pair) -> None:
    asked = Constraints(banned=[int(pair[1].topk(HIDDEN, 1).ids[0, 0]), 5], biased=[7], bias=[3.0])
    gpu, host = (each.topk(HIDDEN, 4, head="exact", constraints=asked) for each in pair)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    np.testing.assert_array_equal(gpu.logits, host.logits)


def test_scores_and_beams(pair: Pair) -> None:
    gpu, host = (each.score(HIDDEN, [[3, 4]] * 4, normalizer="exact") for each in pair)
    np.testing.assert_allclose(gpu.log_probs, host.log_probs, atol=2e-6)
    stepped, there = (each.beam_step(HIDDEN, beams_in=2, beams_out=3) for each in pair)
    np.testing.assert_array_equal(stepped.tokens, there.tokens)
    np.testing.assert_array_equal(stepped.parents, there.parents)


@pytest.mark.parametrize("step", [0, 7, 2**64 - 1])
def test_draws_of_the_exact_head_are_the_hosts(pair: Pair, step: int) -> None:
    seeds = np.array([1, 2, 3, 2**64 - 5], np.uint64)
    gpu, host = (
        each.sample(HIDDEN, 3, seeds=seeds, step=step, temperature=0.7, head="exact")
        for each in pair
    )
    np.testing.assert_array_equal(gpu.ids, host.ids)
    np.testing.assert_allclose(gpu.log_probs, host.log_probs, atol=2e-6)


def test_draws_of_what_constraints_leave_are_the_hosts(pair: Pair) -> None:
    best = pair[1].topk(HIDDEN, 2).ids.ravel().tolist()
    asked = Constraints(banned=best, biased=[9], bias=[2.0])
    gpu, host = (
        each.sample(HIDDEN, 2, seeds=[1, 2, 3, 4], head="exact", constraints=asked) for each in pair
    )
    np.testing.assert_array_equal(gpu.ids, host.ids)


def test_filtered_draws_and_those_of_other_heads(pair: Pair) -> None:
    for target in ({"head": "screen"}, {"head": "exact", "top_p": 0.5}):
        gpu, host = (each.sample(HIDDEN, seeds=[1, 2, 3, 4], **target) for each in pair)
        np.testing.assert_array_equal(gpu.ids, host.ids)


def test_draws_of_the_certified_head_are_those_of_the_exact_one(pair: Pair) -> None:
    rules, seeds = Constraints(banned=[5], biased=[9], bias=[2.0]), [1, 2, 3, 4]
    gpu = pair[0].sample(HIDDEN, 3, seeds=seeds, head="certified", constraints=rules)
    host = pair[1].sample(HIDDEN, 3, seeds=seeds, head="exact", constraints=rules)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    assert gpu.answer.log_z_low is not None
    assert gpu.answer.log_z_high is not None
    assert host.answer.log_z is not None
    assert (gpu.answer.log_z_low <= host.answer.log_z).all()
    assert (host.answer.log_z <= gpu.answer.log_z_high).all()
