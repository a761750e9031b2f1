"""Heads under a mask of the ids that each row may be answered, against all logits in float64."""

from typing import Any

import numpy as np
import pytest

from logitsieve.api.mask import packed
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Int32
from logitsieve.heads import HEADS, Head
from logitsieve.heads.full import FullHead
from logitsieve.heads.sketch import GRADES, SketchHead
from logitsieve.kernels.topk.descriptor import shares_of
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE
from tests.oracle import best, log_sum_exp, logits64
from tests.synthetic import make_head, make_hidden, make_softmax

SOFTMAX, ROWS, K = make_softmax(3001, 32), 12, 5
HIDDEN = make_hidden(ROWS, 32)
LOGITS = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
SHARES = [1e-3, 1e-2, 0.1, 0.5, 0.9, 1.0]  # of all ids, allowed


def mask_of(share: float, seed: int = 0) -> tuple[Int32, Bool]:
    """Random masks and their bits [B, V]; every row keeps one id."""
    random = np.random.default_rng(seed)
    bits = random.random((ROWS, SOFTMAX.vocab_size)) < share
    bits[np.arange(ROWS), random.integers(0, SOFTMAX.vocab_size, ROWS)] = True
    return packed(bits), bits


def expected(bits: Bool, k: int, logits: Any = LOGITS) -> Any:
    """[B, K] the best allowed ids, -1 beyond them."""
    left = np.where(bits, logits, -np.inf)
    ids = best(left, k)
    return np.where(np.take_along_axis(left, ids, 1) > -np.inf, ids, -1)


def heads() -> list[Head]:
    others = [make_head(name, SOFTMAX) for name in HEADS if name != "sketch"]
    return [*others, *(make_head("sketch", SOFTMAX, max_error=grade) for grade in GRADES)]


@pytest.mark.parametrize("head", heads(), ids=lambda head: f"{head.name} {head.knobs}")
@pytest.mark.parametrize("share", SHARES)
def test_answers_are_of_allowed_ids_and_the_best_where_it_is_promised(
    head: Head, share: float
) -> None:
    mask, bits = mask_of(share)
    for k in (1, K, 300):
        top = head.masked(mask).topk(HIDDEN, k)
        found = top.ids >= 0
        assert bits[np.nonzero(found)[0], top.ids[found]].all()
        assert (top.logits[~found] == -np.inf).all()
        assert (found.sum(axis=1) == np.minimum(bits.sum(axis=1), k)).all()
        exact = top.proven if head.max_error == 1.0 else np.ones(ROWS, np.bool_)
        np.testing.assert_array_equal(top.ids[exact], expected(bits, k)[exact])
    assert not head.topk(HIDDEN, K).ids.min() < 0  # the head itself is unmasked


@pytest.mark.parametrize("name", ["full", "sketch"])
def test_equal_logits_go_by_the_lower_allowed_id(name: str) -> None:
    softmax = make_softmax(640, 32)
    softmax.weight[:], softmax.bias[:] = softmax.weight[:1], 0.0
    bits = np.zeros((ROWS, 640), np.bool_)
    bits[:, [3, 40, 41, 400, 639]] = True
    bits[1::2, 3] = False
    top = make_head(name, softmax).masked(packed(bits)).topk(HIDDEN, 3)
    np.testing.assert_array_equal(top.ids[:2], [[3, 40, 41], [40, 41, 400]])


@pytest.mark.parametrize("name", ["full", "sketch"])
@pytest.mark.parametrize("share", SHARES)
def test_shares_of_rows_find_what_one_thread_finds(name: str, share: float) -> None:
    mask, bits = mask_of(share)
    head = make_head(name, SOFTMAX, 3)
    head._shares = shares_of(head._descriptor, 3)
    masked = head.masked(mask[:2])
    top = masked.topk(HIDDEN[:2], K)
    np.testing.assert_array_equal(top.ids, expected(bits, K)[:2])
    found = masked.best_with_log_z(HIDDEN[:2], K)
    np.testing.assert_array_equal(found.ids, expected(bits, K)[:2])


@pytest.mark.parametrize("share", SHARES)
def test_log_z_sums_what_is_allowed(share: float) -> None:
    mask, bits = mask_of(share)
    exact = np.array([log_sum_exp(row[own]) for row, own in zip(LOGITS, bits, strict=True)])
    full = make_head("full", SOFTMAX).masked(mask)
    assert isinstance(full, FullHead)
    found = full.best_with_log_z(HIDDEN, K)
    np.testing.assert_array_equal(found.ids, expected(bits, K))
    for fields in (found.log_z, full.quick_log_z(HIDDEN), full.log_z(HIDDEN, 1.0)):
        low, high = (fields[:, TOP] + fields[:, end] for end in (LOW, HIGH))
        assert (low <= exact + 1e-12).all()
        assert (exact - 1e-12 <= high).all()
        assert (high - low < 1e-2).all()
    sketch = make_head("sketch", SOFTMAX, max_error=1e-15).masked(mask)
    estimated = sketch.best_with_log_z(HIDDEN, K)
    np.testing.assert_array_equal(estimated.ids, expected(bits, K))
    off = np.abs(estimated.log_z[:, VALUE] - exact)
    assert (off <= 25 * estimated.errors + 1e-6).all()  # without a mask up to 18 here


@pytest.mark.parametrize("share", SHARES)
def test_draws_are_those_of_all_logits_with_the_same_noise(share: float) -> None:
    mask, bits = mask_of(share)
    how = Sampling(20, np.arange(ROWS, dtype=np.uint64))
    sketch = make_head("sketch", SOFTMAX).masked(mask)
    assert isinstance(sketch, SketchHead)
    drawn = sketch.draw(HIDDEN, how)
    everywhere = packed(np.ones_like(bits))
    again = make_head("full", SOFTMAX).masked(everywhere)
    assert isinstance(again, FullHead)
    plain = again.draw(HIDDEN, how)
    for row in range(ROWS):
        assert bits[row, drawn.ids[row]].all()
        kept = bits[row, plain.ids[row]]  # the winner of all wins among some of them, too
        np.testing.assert_array_equal(drawn.ids[row][kept], plain.ids[row][kept])
