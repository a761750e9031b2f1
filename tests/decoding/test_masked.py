"""Answers under a mask of bits: those under lists of the same ids, and of the masked softmax."""

from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.mask import packed
from logitsieve.api.results import Bool
from logitsieve.decoding import LocalDecoder
from tests.oracle import best, log_sum_exp, logits64
from tests.synthetic import make_hidden

ROWS, SHARES = 6, [0.05, 0.3, 0.95]


def bits_of(share: float, size: int) -> Bool:
    random = np.random.default_rng(int(100 * share))
    bits = random.random((ROWS, size)) < share
    bits[:, 7] = True
    return bits


def both(bits: Bool, **more: Any) -> tuple[Constraints, Constraints]:
    allowed = [np.flatnonzero(row).tolist() for row in bits]
    return Constraints(mask=packed(bits), **more), Constraints(allowed=allowed, **more)


@pytest.fixture(scope="module")
def hidden_states(decoder: LocalDecoder) -> Any:
    return make_hidden(ROWS, decoder.index.dim)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("head", ["full", "sketch", "screen", "svd", "lsh"])
def test_the_best_ids_are_the_best_allowed_ones(
    decoder: LocalDecoder, hidden_states: Any, head: str, share: float
) -> None:
    bits = bits_of(share, decoder.index.vocab_size)
    mask, allowed = both(bits)
    found = decoder.topk(hidden_states, 5, head=head, constraints=mask)
    exact = decoder.topk(hidden_states, 5, head="full", constraints=allowed)
    proven = found.answer.proven
    assert proven.all() or head not in ("full", "sketch")
    np.testing.assert_array_equal(found.ids[proven], exact.ids[proven])
    np.testing.assert_array_equal(found.logits[proven], exact.logits[proven])
    assert bits[np.arange(ROWS)[:, None], found.ids].all()


MORE: list[Any] = [
    {"banned": [7, 11]},
    {"biased": [3, 8], "bias": [4.0, -2.0]},
    {"repeated": [1, 2, 7], "repetition_penalty": 1.5},
]


@pytest.mark.parametrize("more", MORE, ids=lambda more: next(iter(more)))
def test_other_constraints_hold_beside_a_mask(
    decoder: LocalDecoder, hidden_states: Any, more: Any
) -> None:
    mask, allowed = both(bits_of(0.3, decoder.index.vocab_size), **more)
    for asked in (
        lambda own: decoder.topk(hidden_states, 4, constraints=own, head="sketch"),
        lambda own: decoder.sample(hidden_states, 4, constraints=own, seeds=3, head="sketch"),
    ):
        found, expected = asked(mask), asked(allowed)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found[1], expected[1], atol=2e-5)
    one, other = (
        decoder.score(hidden_states, [[7, 3]] * ROWS, constraints=own).log_probs
        for own in (mask, allowed)
    )
    np.testing.assert_allclose(one, other, atol=2e-5)


OPTIONS: list[Any] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 9},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    {"replace": False},
    {"replace": False, "top_p": 0.9},
    {"log_probs": False, "top_p": 0.9},
    {"log_probs": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("head", ["full", "sketch", "screen"])
def test_draws_are_those_from_lists_of_the_same_ids(
    decoder: LocalDecoder, hidden_states: Any, head: str, share: float, options: Any
) -> None:
    mask, allowed = both(bits_of(share, decoder.index.vocab_size))
    if head == "screen" and options in (OPTIONS[2], OPTIONS[3]):
        return  # the best ids of a screen are not exact
    asked = {"seeds": 5, **options}
    found = decoder.sample(hidden_states, 3, constraints=mask, head=head, **asked)
    expected = decoder.sample(hidden_states, 3, constraints=allowed, head="full", **asked)
    np.testing.assert_array_equal(found.ids, expected.ids)
    if options.get("log_probs", True):
        off = 12 * (0.0 if (error := found.answer.log_z_error) is None else error.max()) + 2e-5
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=off)


@pytest.mark.parametrize("normalizer", ["full", "sketch", "approximate", "candidates", "sampled"])
def test_log_z_is_that_of_allowed_ids(
    decoder: LocalDecoder, hidden_states: Any, normalizer: Any
) -> None:
    softmax = decoder.index.softmax
    bits = bits_of(0.3, softmax.vocab_size)
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    exact = np.array([log_sum_exp(row[own]) for row, own in zip(logits, bits, strict=True)])
    mask, _ = both(bits)
    reply = decoder.topk(hidden_states, 2, head="full", normalizer=normalizer, constraints=mask)
    answer = reply.answer
    assert answer.log_z is not None
    np.testing.assert_allclose(answer.log_z, exact, atol=1e-3)
    if answer.log_z_low is not None and answer.log_z_high is not None:
        assert (answer.log_z_low <= exact + 1e-6).all()
        assert (exact <= answer.log_z_high + 1e-6).all()
    forbidden = np.argmin(bits, axis=1)[:, None]
    assert (decoder.score(hidden_states, forbidden, constraints=mask).log_probs == -np.inf).all()


def test_a_beam_step_has_a_mask_for_each_hypothesis(
    decoder: LocalDecoder, hidden_states: Any
) -> None:
    mask, allowed = both(bits_of(0.05, decoder.index.vocab_size))
    steps = [
        decoder.beam_step(
            hidden_states, scores=np.zeros(ROWS), beams_in=3, beams_out=4, constraints=asked,
            head="sketch", finished=[False, True, False] * 2, eos_ids=[1],
        )
        for asked in (mask, allowed)
    ]  # fmt: skip
    for found, expected in zip(steps[0][:5], steps[1][:5], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_more_ids_than_are_allowed_are_refused(decoder: LocalDecoder, hidden_states: Any) -> None:
    size = decoder.index.vocab_size
    bits = bits_of(0.3, size)
    bits[4] = np.arange(size) < 3
    with pytest.raises(InvalidRequest, match=r"k: got 5, allowed: at most 3, .* in row 4"):
        decoder.topk(hidden_states, 5, constraints=Constraints(mask=packed(bits)))
    some = decoder.sample(
        hidden_states, 5, replace=False, constraints=Constraints(mask=packed(bits))
    )
    assert (some.ids >= 0).sum(axis=1).tolist() == [5, 5, 5, 5, 3, 5]


def wrong_masks(words: int) -> list[tuple[Any, str]]:
    ones = np.full((ROWS, words), -1, np.int32)
    empty, last = ones.copy(), ones.copy()
    empty[2] = 0
    last[1] = 0
    last[1, -1] = np.int32(-(2**31))
    return [
        (ones[:, 1:], "words"),
        (ones[:3], f"int32 .* got|int32 \\[3, {words}\\]"),
        (ones.astype(np.int64), "int64"),
        (ones.astype(np.float32), "float32"),
        (ones[0, 0], r"int32 \[\]"),
        ("text", "mask"),
        (empty, "no bit in row 2"),
        (last, "no bit in row 1"),
    ]


@pytest.mark.parametrize("place", range(8))
def test_wrong_masks_are_named(decoder: LocalDecoder, hidden_states: Any, place: int) -> None:
    size = decoder.index.vocab_size
    assert size % 32, "the last word has bits beyond V"
    mask, reason = wrong_masks(-(-size // 32))[place]
    with pytest.raises(InvalidRequest, match=reason) as caught:
        decoder.topk(hidden_states, 1, constraints=Constraints(mask=mask))
    assert caught.value.field == "constraints.mask"


def test_bits_beyond_v_are_no_ids(decoder: LocalDecoder, hidden_states: Any) -> None:
    size = decoder.index.vocab_size
    ones = np.full(-(-size // 32), -1, np.int32)
    found = decoder.topk(hidden_states, 3, constraints=Constraints(mask=ones), head="full")
    softmax = decoder.index.softmax
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    np.testing.assert_array_equal(found.ids, best(logits, 3))
