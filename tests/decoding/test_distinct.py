"""Draws without replacement against the largest perturbed logits by brute force in float64."""

from typing import Any

import numpy as np
import pytest

from logitsieve.decoding import LocalDecoder, distinct
from tests.decoding.normalized import CONSTRAINTS, HIDDEN, ORDER, SIZE, logits_of
from tests.oracle import filtered, gumbel_noise, log_sum_exp
from tests.refusals import refused

SEEDS, NONE = range(4), (0, 1.0, 0.0)


def largest(
    logits: np.ndarray, seed: int, count: int, temperature: float, filters: tuple[int, float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a row with the largest perturbed logits, -1 beyond the last, and these."""
    left = np.sort(np.array(filtered(logits, temperature, *filters), np.int64))
    noisy = (logits[left] - logits.max()) / temperature + gumbel_noise(seed, 3, 0, left)
    order = np.argsort(-noisy, kind="stable")[:count]
    ids, values = np.full(count, -1), np.full(count, -np.inf)
    ids[: order.size] = left[order]
    values[: order.size] = noisy[order] + logits.max() / temperature
    return ids, values


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("filters", [NONE, (20, 1.0, 0.0), (0, 0.8, 0.0), (9, 0.9, 0.02)])
@pytest.mark.parametrize("head", ["full", "sketch"])
def test_draws_are_the_largest_perturbed_logits_in_order(
    decoder: LocalDecoder, constraints: str, filters: tuple[int, float, float], head: str
) -> None:
    asked = CONSTRAINTS[constraints]
    options: Any = {"seeds": SEEDS, "step": 3, "constraints": asked, "head": head}
    options |= dict(zip(("top_k", "top_p", "min_p"), filters, strict=True))
    for temperature, count in ((0.7, 12), (3.0, 150), (0.05, 2), (1e4, SIZE)):
        reply = decoder.sample(HIDDEN, count, replace=False, temperature=temperature, **options)
        assert reply.answer.proven.all()
        assert reply.perturbed is not None
        for row, logits in enumerate(logits_of(asked)):
            ids, values = largest(logits, row, count, temperature, filters)
            np.testing.assert_array_equal(reply.ids[row], ids)
            np.testing.assert_allclose(reply.perturbed[row], values, rtol=1e-6, atol=1e-6)
            left, drawn = filtered(logits, temperature, *filters), ids >= 0
            log_z = log_sum_exp(logits[left] / temperature)
            wanted = np.where(drawn, logits[ids] / temperature - log_z, -np.inf)
            np.testing.assert_allclose(reply.log_probs[row], wanted, rtol=1e-5, atol=1e-5)
        with_replacement = decoder.sample(HIDDEN, 1, temperature=temperature, **options)
        np.testing.assert_array_equal(reply.ids[:, 0], with_replacement.ids[:, 0])
        assert with_replacement.perturbed is None


@pytest.mark.parametrize("listed", [1, 4, 64])
def test_no_id_outside_of_the_list_is_forgotten(
    decoder: LocalDecoder, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    """With noise far above the logits, most of the winners are outside of the best ids."""
    monkeypatch.setattr(distinct, "LEAST_LISTED", listed)
    outside = 0
    for seed in range(20):
        reply = decoder.sample(HIDDEN[:1], 2, replace=False, temperature=50.0, seeds=[seed], step=3)
        ids, _ = largest(logits_of(None)[0], seed, 2, 50.0, NONE)
        assert reply.ids[0].tolist() == ids.tolist()
        outside += not np.isin(ids, ORDER[0, : max(listed, 4)]).all()
    assert outside > 5


def test_another_head_hands_such_draws_over(decoder: LocalDecoder) -> None:
    reply = decoder.sample(HIDDEN, 5, replace=False, seeds=SEEDS, head="svd")
    wanted = decoder.sample(HIDDEN, 5, replace=False, seeds=SEEDS, head="sketch")
    np.testing.assert_array_equal(reply.ids, wanted.ids)
    assert reply.answer.fallback.all()
    assert not wanted.answer.fallback.any()


def test_too_many_and_at_a_temperature_of_0(decoder: LocalDecoder) -> None:
    with refused("samples", f"at most {SIZE}"):
        decoder.sample(HIDDEN, SIZE + 1, replace=False)
    with refused("temperature", "topk"):
        decoder.sample(HIDDEN, 2, replace=False, temperature=0.0)
    with refused("replace"):
        decoder.sample(HIDDEN, 2, replace=1)  # type: ignore[arg-type]
