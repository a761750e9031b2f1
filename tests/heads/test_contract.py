"""What every head in the registry must do, whatever its method."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.heads import HEADS, Head, Softmax
from logitsieve.types.errors import InvalidKnob, InvalidRequest
from tests.oracle import best, logits64
from tests.synthetic import make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
EVERY_HEAD = pytest.mark.parametrize("name", HEADS)


def assert_right(head: Head, softmax: Softmax, hidden: np.ndarray, k: int) -> None:
    top = head.topk(hidden, k)
    true = logits64(softmax.weight, softmax.bias, hidden)
    rows = len(hidden)
    assert top.ids.shape == top.logits.shape == (rows, k)
    assert top.ids.dtype == np.int32
    assert top.logits.dtype == np.float32
    assert ((top.ids >= 0) & (top.ids < softmax.vocab_size)).all()
    assert (np.diff(np.sort(top.ids, axis=1), axis=1) > 0).all(), "an id twice in a row"
    chosen = np.take_along_axis(true, top.ids.astype(np.int64), 1)
    np.testing.assert_array_equal(top.logits, chosen.astype(np.float32))
    assert (np.diff(chosen, axis=1) <= 0).all()
    tied = np.diff(chosen, axis=1) == 0
    assert (np.diff(top.ids, axis=1)[tied] > 0).all(), "a tie out of order"
    np.testing.assert_array_equal(top.ids[top.exact], best(true, k)[top.exact])
    assert (top.scanned >= k).all()
    assert head.proves <= bool(top.exact.all())


@EVERY_HEAD
@pytest.mark.parametrize("k", [1, 2, 5, 64, 299, 300])
def test_answers_are_exact_logits_of_distinct_ids_best_first(name: str, k: int) -> None:
    assert_right(make_head(name, SOFTMAX), SOFTMAX, HIDDEN[:9], k)


@EVERY_HEAD
@settings(max_examples=40, deadline=None)
@given(
    vocab_size=st.integers(1, 90),
    dim=st.integers(1, 40),
    rows=st.integers(1, 9),
    weight_exponent=st.integers(-60, 40),
    hidden_exponent=st.integers(-60, 40),
    data=st.data(),
)
def test_shapes_and_scales(
    name: str,
    vocab_size: int,
    dim: int,
    rows: int,
    weight_exponent: int,
    hidden_exponent: int,
    data: st.DataObject,
) -> None:
    k = data.draw(st.integers(1, vocab_size))
    softmax = make_softmax(vocab_size, dim, scale=2.0**weight_exponent)
    hidden = make_hidden(rows, dim, scale=2.0**hidden_exponent)
    assert_right(make_head(name, softmax), softmax, hidden, k)


def ties(softmax: Softmax) -> Softmax:
    return Softmax(np.repeat(softmax.weight[:30], 10, axis=0), np.repeat(softmax.bias[:30], 10))


def huge_bias(softmax: Softmax) -> Softmax:
    signs = np.where(np.arange(300) % 2, 1e4, -1e4).astype(np.float32)
    return Softmax(softmax.weight, softmax.bias + signs)


def one_bit_apart(softmax: Softmax) -> Softmax:
    """Rows that differ in the last bit of one weight: float32 sums cannot order them."""
    weight = np.repeat(softmax.weight[:1], 300, axis=0)
    weight[:, 3] = weight[0, 3] + np.arange(300, dtype=np.float32) * np.spacing(weight[0, 3])
    return Softmax(weight, np.zeros(300, np.float32))


def denormal(softmax: Softmax) -> Softmax:
    return Softmax(softmax.weight * np.float32(2.0**-140), softmax.bias * np.float32(2.0**-140))


def one_giant(softmax: Softmax) -> Softmax:
    weight = softmax.weight.copy()
    weight[17] *= np.float32(1e20)
    return Softmax(weight, softmax.bias)


def all_zero(softmax: Softmax) -> Softmax:
    return Softmax(np.zeros_like(softmax.weight), np.zeros_like(softmax.bias))


@EVERY_HEAD
@pytest.mark.parametrize("attack", [ties, huge_bias, one_bit_apart, denormal, one_giant, all_zero])
@pytest.mark.parametrize("scale", [1.0, 1e-13, 1e-40, 1e10, 0.0])
def test_adversarial_matrices(
    name: str, attack: Callable[[Softmax], Softmax], scale: float
) -> None:
    softmax = attack(SOFTMAX)
    hidden = (HIDDEN[:6] * scale).astype(np.float32)
    for k in (1, 5, 40):
        assert_right(make_head(name, softmax), softmax, hidden, k)


@EVERY_HEAD
@pytest.mark.parametrize("exponent", [-149, -140, -126, -100, 0, 60])
def test_a_large_vocabulary_of_rows_one_bit_apart(name: str, exponent: int) -> None:
    """More rows than one chunk, ordered by their last bits, down to denormal products."""
    weight = np.ones((700, 20), np.float32)
    weight[:, 7] += np.arange(700, dtype=np.float32)[::-1] * np.spacing(np.float32(1))
    softmax = Softmax(weight, np.zeros(700, np.float32))
    hidden = np.full((5, 20), 2.0**exponent, np.float32)
    hidden[1:] *= make_hidden(4, 20)
    for k in (1, 5, 64):
        assert_right(make_head(name, softmax), softmax, hidden, k)


@EVERY_HEAD
@pytest.mark.parametrize(
    ("weight", "bias", "field"),
    [
        (np.ones((4, 3)), np.zeros(4, np.float32), "weight"),
        (np.ones((3, 4), np.float32).T, np.zeros(4, np.float32), "weight"),
        (np.ones((4, 3), np.int32), np.zeros(4, np.float32), "weight"),
        (np.ones((0, 3), np.float32), np.zeros(0, np.float32), "weight"),
        (np.ones((4, 3), np.float32), np.zeros(3, np.float32), "bias"),
        (np.ones((4, 3), np.float32), np.zeros(4), "bias"),
    ],
)
def test_a_softmax_that_kernels_would_misread_is_refused(
    name: str, weight: np.ndarray, bias: np.ndarray, field: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        make_head(name, Softmax(weight, bias))
    assert error.value.field == field


@EVERY_HEAD
@pytest.mark.parametrize("place", ["weight", "bias"])
def test_nothing_is_proven_over_a_matrix_that_is_not_finite(name: str, place: str) -> None:
    arrays = {"weight": SOFTMAX.weight.copy(), "bias": SOFTMAX.bias.copy()}
    arrays[place][3] = np.nan
    head = make_head(name, Softmax(arrays["weight"], arrays["bias"]))
    with pytest.raises(InvalidRequest):
        head.topk(HIDDEN, 5)


@EVERY_HEAD
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch(name: str, threads: int) -> None:
    head = make_head(name, SOFTMAX, threads=threads)
    alone = [head.topk(row, 5) for row in HIDDEN]
    for size in (2, 3, 4, 5, 33, 70):
        batches = [head.topk(HIDDEN[i : i + size], 5) for i in range(0, len(HIDDEN), size)]
        for field in ("ids", "logits", "exact", "scanned"):
            together = np.concatenate([getattr(top, field) for top in batches])
            separately = np.concatenate([getattr(top, field) for top in alone])
            np.testing.assert_array_equal(together, separately, err_msg=f"{field} at {size}")


@EVERY_HEAD
def test_threads_may_share_a_head(name: str) -> None:
    head = make_head(name, SOFTMAX, threads=2)
    expected = head.topk(HIDDEN, 7)
    with ThreadPoolExecutor(8) as callers:
        for top in callers.map(lambda _: head.topk(HIDDEN, 7), range(40)):
            np.testing.assert_array_equal(top.ids, expected.ids)
            np.testing.assert_array_equal(top.logits, expected.logits)


@EVERY_HEAD
def test_answers_are_fresh_arrays(name: str) -> None:
    head = make_head(name, SOFTMAX)
    first = head.topk(HIDDEN[:3], 5)
    for array in first:
        assert array.flags.owndata
        assert array.flags.writeable
    kept = first.ids.copy()
    head.topk(HIDDEN[3:6], 5)
    np.testing.assert_array_equal(first.ids, kept)


@EVERY_HEAD
@pytest.mark.parametrize("k", [5, 70])
def test_candidates_hold_the_answer_with_exact_logits(name: str, k: int) -> None:
    head = make_head(name, SOFTMAX)
    found, top = head.candidates(HIDDEN, k), head.topk(HIDDEN, k)
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    for row in range(len(HIDDEN)):
        mine = slice(found.offsets[row], found.offsets[row + 1])
        ids = found.ids[mine]
        assert len(set(ids.tolist())) == len(ids)
        np.testing.assert_array_equal(found.logits[mine], true[row, ids].astype(np.float32))
        order = np.lexsort((ids, -true[row, ids]))[:k]
        np.testing.assert_array_equal(ids[order], top.ids[row])
        outside = np.delete(true[row], ids)
        assert outside.size == 0 or outside.max() <= found.upper[row]


@EVERY_HEAD
def test_every_accepted_form_of_hidden(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch")
    head = make_head(name, SOFTMAX)
    bfloat16 = HIDDEN[:3].astype(ml_dtypes.bfloat16)
    rounded = bfloat16.astype(np.float32)
    forms = [
        rounded.astype(np.float64),
        np.asfortranarray(rounded),
        np.repeat(rounded, 2, axis=0)[::2],
        rounded.tolist(),
        bfloat16,
        bfloat16.view(np.uint16),
        torch.from_numpy(rounded),
        torch.from_numpy(rounded).bfloat16(),
        torch.from_numpy(rounded).requires_grad_(),
    ]
    readonly = rounded.copy()
    readonly.setflags(write=False)
    expected = head.topk(rounded, 5).ids
    for form in [*forms, readonly]:
        np.testing.assert_array_equal(head.topk(form, 5).ids, expected)
    np.testing.assert_array_equal(head.topk(rounded[0], 5).ids, expected[:1])
    half = HIDDEN[:3].astype(np.float16)
    np.testing.assert_array_equal(head.topk(half, 5).ids, head.topk(half.astype(np.float32), 5).ids)


def with_value(value: float) -> np.ndarray:
    hidden = HIDDEN[:6].copy()
    hidden[4, 23] = value
    return hidden


@EVERY_HEAD
@pytest.mark.parametrize(
    ("hidden", "k", "field"),
    [
        (HIDDEN[:, :5], 1, "hidden"),
        (HIDDEN[:0], 1, "hidden"),
        (HIDDEN[None], 1, "hidden"),
        (np.float32(1.0), 1, "hidden"),
        (HIDDEN.astype(np.int64), 1, "hidden"),
        (HIDDEN.astype(object), 1, "hidden"),
        (HIDDEN.astype(">f4"), 1, "hidden"),
        (HIDDEN.astype(np.complex64), 1, "hidden"),
        ("text", 1, "hidden"),
        ([[1.0], [1.0, 2.0]], 1, "hidden"),
        (None, 1, "hidden"),
        (with_value(np.nan), 1, "hidden[4]"),
        (with_value(np.inf), 1, "hidden[4]"),
        (with_value(-np.inf), 1, "hidden[4]"),
        (with_value(3e38), 1, "hidden[4]"),
        (HIDDEN, 0, "k"),
        (HIDDEN, -1, "k"),
        (HIDDEN, 301, "k"),
        (HIDDEN, 2.0, "k"),
        (HIDDEN, True, "k"),
        (HIDDEN, "5", "k"),
        (HIDDEN, None, "k"),
    ],
)
def test_bad_input_names_the_field(name: str, hidden: Any, k: Any, field: str) -> None:
    for threads in (1, 2):
        head = make_head(name, SOFTMAX, threads=threads)
        for method in (head.topk, head.candidates):
            with pytest.raises(InvalidRequest) as error:
                method(hidden, k)
            assert error.value.field == field
        numpy_k: Any = np.int64(3)
        assert head.topk(HIDDEN[:1], numpy_k).ids.shape == (1, 3)


@EVERY_HEAD
def test_unknown_knobs_are_refused(name: str) -> None:
    head = make_head(name, SOFTMAX)
    with pytest.raises(InvalidKnob, match="colour"):
        head.with_knobs(colour=1)
    for knob, entry in head.knob_table.items():
        wrong: list[Any] = [
            entry.low - 1,
            entry.high + 1,
            1.5,
            float("nan"),
            float("inf"),
            True,
            "3",
        ]
        for value in wrong:
            with pytest.raises(InvalidKnob, match=knob):
                head.with_knobs(**{knob: value})
        assert head.with_knobs(**{knob: entry.high}).knobs.keys() == head.knobs.keys()


@EVERY_HEAD
def test_warm_changes_nothing(name: str) -> None:
    head = make_head(name, SOFTMAX)
    before = head.topk(HIDDEN, 5)
    head.warm()
    np.testing.assert_array_equal(head.topk(HIDDEN, 5).ids, before.ids)
