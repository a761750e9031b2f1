"""Promises of every head in the registry, whatever its method, on the host and on a GPU.

Without a GPU, PyTorch's CPU device stands for one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.errors import InvalidKnob, InvalidRequest
from logitsieve.gpu.heads import GPU_HEADS
from logitsieve.heads import HEADS, Head, Softmax
from logitsieve.heads.sketch import GRADES
from tests.gpu.opened import make_gpu_head
from tests.oracle import best, logits64
from tests.refusals import refused
from tests.synthetic import ARRAYS, make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)


class Kind:
    """A way to make a head."""

    def __init__(self, label: str, make: Callable[..., Any]) -> None:
        self.label, self.make = label, make
        self.made: Callable[..., Any] = cache(partial(make, SOFTMAX))


KINDS = [
    *(Kind(name, partial(make_head, name)) for name in HEADS),
    *(Kind(f"sketch-{grade:g}", partial(make_head, "sketch", max_error=grade)) for grade in GRADES),
    *(Kind(f"{name}-GPU", partial(make_gpu_head, name)) for name in GPU_HEADS),
]


def every_kind(names: str = "", values: Sequence[Any] = ((),)) -> pytest.MarkDecorator:
    """Each kind with each of these values of `names`."""
    cases = [
        pytest.param(kind, *each, id=f"{kind.label}-{number}")
        for kind in KINDS
        for number, each in enumerate(values)
    ]
    return pytest.mark.parametrize(f"kind,{names}".rstrip(","), cases)


def assert_right(head: Head, softmax: Softmax, hidden_states: np.ndarray, k: int) -> None:
    top = head.topk(hidden_states, k)
    true = logits64(softmax.weight, softmax.bias, hidden_states)
    rows = len(hidden_states)
    assert top.ids.shape == top.logits.shape == (rows, k)
    assert (top.ids.dtype.name, top.logits.dtype.name) == ("int32", "float32")
    assert ((top.ids >= 0) & (top.ids < softmax.vocab_size)).all()
    assert (np.diff(np.sort(top.ids, axis=1), axis=1) > 0).all(), "an id twice in a row"
    chosen = np.take_along_axis(true, top.ids.astype(np.int64), 1)
    np.testing.assert_array_equal(top.logits, chosen.astype(np.float32))
    assert (np.diff(chosen, axis=1) <= 0).all()
    tied = np.diff(chosen, axis=1) == 0
    assert (np.diff(top.ids, axis=1)[tied] > 0).all(), "a tie out of order"
    np.testing.assert_array_equal(top.ids[top.proven], best(true, k)[top.proven])
    assert (top.scanned >= k).all()
    assert head.proves <= bool(top.proven.all())
    assert head.proves == (head.max_error == 0.0)


@every_kind()
def test_answers_are_exact_logits_of_distinct_ids_best_first(kind: Kind) -> None:
    for k in (1, 2, 5, 64, 299, 300):
        assert_right(kind.made(), SOFTMAX, HIDDEN[:9], k)


@every_kind()
@settings(max_examples=25)
@given(
    st.integers(1, 9),
    st.integers(1, 90),
    st.integers(1, 130),
    st.integers(-60, 40),
    st.integers(-60, 40),
    st.data(),
)
def test_shapes_and_scales(
    kind: Kind, rows: int, vocab_size: int, dim: int, weight: int, hidden_states: int, data: Any
) -> None:
    """`weight` and `hidden_states` are exponents."""
    softmax = make_softmax(vocab_size, dim, scale=2.0**weight)
    contexts = make_hidden(rows, dim, scale=2.0**hidden_states)
    assert_right(kind.make(softmax), softmax, contexts, data.draw(st.integers(1, vocab_size)))


def ties(softmax: Softmax) -> Softmax:
    return Softmax(np.repeat(softmax.weight[:30], 10, axis=0), np.repeat(softmax.bias[:30], 10))


def huge_bias(softmax: Softmax) -> Softmax:
    signs = np.where(np.arange(300) % 2, 1e4, -1e4).astype(np.float32)
    return Softmax(softmax.weight, softmax.bias + signs)


def denormal(softmax: Softmax) -> Softmax:
    return Softmax(softmax.weight * np.float32(2.0**-140), softmax.bias * np.float32(2.0**-140))


def one_giant(softmax: Softmax) -> Softmax:
    weight = softmax.weight.copy()
    weight[17] *= np.float32(1e20)
    return Softmax(weight, softmax.bias)


def all_zero(softmax: Softmax) -> Softmax:
    return Softmax(np.zeros_like(softmax.weight), np.zeros_like(softmax.bias))


ATTACKS = (ties, huge_bias, denormal, one_giant, all_zero)


@every_kind("attack", [(attack,) for attack in ATTACKS])
def test_adversarial_matrices(kind: Kind, attack: Callable[[Softmax], Softmax]) -> None:
    softmax = attack(SOFTMAX)
    head = kind.make(softmax)
    for scale, k in product((1.0, 1e-13, 1e-40, 1e10, 0.0), (1, 5, 40)):
        assert_right(head, softmax, (HIDDEN[:6] * scale).astype(np.float32), k)


@every_kind()
def test_a_large_vocabulary_of_rows_one_bit_apart(kind: Kind) -> None:
    """More rows than one chunk, ordered by their last bits, down to denormal products."""
    weight = np.ones((700, 20), np.float32)
    weight[:, 7] += np.arange(700, dtype=np.float32)[::-1] * np.spacing(np.float32(1))
    softmax = Softmax(weight, np.zeros(700, np.float32))
    head, factors = kind.make(softmax), np.vstack([np.ones((1, 20)), make_hidden(4, 20)])
    for exponent, k in product((-149, -140, -126, -100, 0, 60), (1, 5, 64)):
        assert_right(head, softmax, (2.0**exponent * factors).astype(np.float32), k)


MISREAD: list[tuple[np.ndarray, np.ndarray, str]] = [
    (np.ones((4, 3)), np.zeros(4, np.float32), "weight"),
    (np.ones((3, 4), np.float32).T, np.zeros(4, np.float32), "weight"),
    (np.ones((4, 3), np.int32), np.zeros(4, np.float32), "weight"),
    (np.ones((0, 3), np.float32), np.zeros(0, np.float32), "weight"),
    (np.ones((4, 3), np.float32), np.zeros(3, np.float32), "bias"),
    (np.ones((4, 3), np.float32), np.zeros(4), "bias"),
]


@every_kind()
def test_a_softmax_that_kernels_would_misread_is_refused(kind: Kind) -> None:
    for weight, bias, field in MISREAD:
        with refused(field):
            kind.make(Softmax(weight, bias))


@pytest.mark.parametrize(
    ("name", "array"), [(name, array) for name in ARRAYS for array in ARRAYS[name](SOFTMAX)]
)
def test_arrays_that_a_kernel_could_not_follow_are_refused(name: str, array: str) -> None:
    arrays = ARRAYS[name](SOFTMAX)
    right = arrays[array]
    wrong = [right[:-1].copy(), right[..., :-1].copy(), right.astype(np.bool_)]
    if right.ndim > 1:
        wrong += [np.asfortranarray(right), right.ravel()]
    if array in ("ids", "order"):
        wrong += [right + np.int32(1), right - np.int32(1)]
    if array == "offsets":
        wrong += [right + np.int32(1), right[::-1].copy(), np.where(right == right[3], 0, right)]
    for spoiled in wrong:
        with refused("arrays"):
            make_head(name, SOFTMAX, arrays=arrays | {array: spoiled})


@every_kind()
def test_nothing_is_proven_over_a_matrix_that_is_not_finite(kind: Kind) -> None:
    for place in ("weight", "bias"):
        arrays = {"weight": SOFTMAX.weight.copy(), "bias": SOFTMAX.bias.copy()}
        arrays[place][3] = np.nan
        head = kind.make(Softmax(arrays["weight"], arrays["bias"]))
        with pytest.raises(InvalidRequest):
            head.topk(HIDDEN, 5)


@every_kind("threads", [(1,), (3,)])
def test_a_row_does_not_depend_on_its_batch(kind: Kind, threads: int) -> None:
    head, hidden_states = kind.make(SOFTMAX, threads=threads), HIDDEN
    alone = [head.topk(row, 5) for row in hidden_states]
    for size in (2, 3, 4, 5, 33, 70):
        batches = [
            head.topk(hidden_states[i : i + size], 5) for i in range(0, len(hidden_states), size)
        ]
        together, separately = (
            [np.concatenate(field) for field in zip(*tops, strict=True)]
            for tops in (batches, alone)
        )
        for name, one, other in zip(alone[0]._fields, together, separately, strict=True):
            if name != "scanned" or size <= head.most_rows:  # others take all logits
                np.testing.assert_array_equal(one, other, err_msg=f"{name}, batches of {size}")


@every_kind("callers,calls", [(8, 40)])
def test_threads_may_share_a_head(kind: Kind, callers: int, calls: int) -> None:
    head, hidden_states = kind.make(SOFTMAX, threads=2), HIDDEN
    batches = [hidden_states, -hidden_states]
    expected = [head.topk(batch, 7) for batch in batches]
    with ThreadPoolExecutor(callers) as pool:
        answers = pool.map(lambda call: head.topk(batches[call % 2], 7), range(calls))
        for call, top in enumerate(answers):
            np.testing.assert_equal(top[:2], expected[call % 2][:2])


@every_kind()
def test_answers_are_fresh_arrays(kind: Kind) -> None:
    """And `warm` changes none."""
    head, hidden_states = kind.made(), HIDDEN[:3]
    first = head.topk(hidden_states, 5)
    assert all(array.flags.owndata and array.flags.writeable for array in first)
    kept = [array.copy() for array in first]
    head.topk(-hidden_states, 5)
    np.testing.assert_equal(list(first), kept)
    head.warm()
    np.testing.assert_array_equal(head.topk(hidden_states, 5).ids, first.ids)


@every_kind("k", [(5,), (40,), (70,)])
def test_candidates_hold_the_answer_with_exact_logits(kind: Kind, k: int) -> None:
    head, hidden_states = kind.made(), HIDDEN
    found, top = head.candidates(hidden_states, k), head.topk(hidden_states, k)
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, hidden_states)
    for row in range(len(hidden_states)):
        mine = slice(found.offsets[row], found.offsets[row + 1])
        ids = found.ids[mine]
        assert len(set(ids.tolist())) == len(ids)
        np.testing.assert_array_equal(found.logits[mine], true[row, ids].astype(np.float32))
        order = np.lexsort((ids, -true[row, ids]))[:k]
        np.testing.assert_array_equal(ids[order], top.ids[row])
        outside = np.delete(true[row], ids)
        assert outside.size == 0 or outside.max() <= found.upper[row]


@every_kind()
def test_every_accepted_form_of_hidden(kind: Kind) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch")
    head, hidden_states = kind.made(), HIDDEN[:3]
    bfloat16 = hidden_states.astype(ml_dtypes.bfloat16)
    rounded = bfloat16.astype(np.float32)
    arrays = [rounded.astype(np.float64), np.asfortranarray(rounded), bfloat16.view(np.uint16)]
    arrays += [np.repeat(rounded, 2, axis=0)[::2], np.broadcast_to(rounded, rounded.shape)]
    tensor = torch.from_numpy(rounded)
    tensors = [tensor, tensor.bfloat16(), tensor.clone().requires_grad_()]
    expected = head.topk(rounded, 5).ids
    for form in (*arrays, *tensors, bfloat16, rounded.tolist()):
        np.testing.assert_array_equal(head.topk(form, 5).ids, expected)
    np.testing.assert_array_equal(head.topk(rounded[0], np.int64(5)).ids, expected[:1])
    half = hidden_states.astype(np.float16)
    np.testing.assert_array_equal(head.topk(half, 5).ids, head.topk(half.astype(np.float32), 5).ids)


def with_value(value: float) -> np.ndarray:
    """The first of two such rows is to be named."""
    hidden_states = HIDDEN[:40].copy()
    hidden_states[[4, 38], 23] = value
    return hidden_states


BAD: list[tuple[Any, Any, str]] = [
    *[
        (shape, 1, "hidden_states")
        for shape in (HIDDEN[:, :5], HIDDEN[:0], HIDDEN[None], np.float32(1))
    ],
    *[
        (HIDDEN.astype(dtype), 1, "hidden_states")
        for dtype in (np.int64, object, ">f4", np.complex64)
    ],
    *[(other, 1, "hidden_states") for other in ("text", [[1.0], [1.0, 2.0]], None)],
    *[(with_value(value), 1, "hidden_states[4]") for value in (np.nan, np.inf, -np.inf, 3e38)],
    *[(HIDDEN, k, "k") for k in (0, -1, 301, 2.0, True, "5", None)],
]


@every_kind()
def test_bad_input_names_the_field(kind: Kind) -> None:
    for head in {kind.made(), kind.made(threads=2)}:
        for method, (hidden_states, k, field) in product((head.topk, head.candidates), BAD):
            with refused(field):
                method(hidden_states, k)


@every_kind()
def test_unknown_knobs_are_refused(kind: Kind) -> None:
    head = kind.made()
    with pytest.raises(InvalidKnob, match="colour"):
        head.with_knobs(colour=1)
    for knob, entry in head.knob_table.items():
        wrong: tuple[Any, ...] = (entry.low - 1, entry.high + 1, 1.5, np.nan, np.inf, True, "3")
        for value in wrong:
            with pytest.raises(InvalidKnob, match=knob):
                head.with_knobs(**{knob: value})
        assert head.with_knobs(**{knob: entry.high}).knobs.keys() == head.knobs.keys()


@pytest.mark.parametrize(
    ("name", "fixed", "knob", "values", "ends_exact"),
    [
        ("frequency", {}, "n", (5, 20, 80, 200, 300), True),
        ("svd", {"width": 6}, "candidates", (5, 10, 20, 40, 80, 300), True),
        ("svd", {"candidates": 10}, "width", (1, 8, 16, 24), False),
        ("lsh", {}, "tables", (1, 2, 4, 6), False),
        ("lsh", {"tables": 2}, "probes", (1, 2, 4, 8), True),
        ("lsh", {}, "candidates", (5, 20, 80, 300), False),
        ("screen", {}, "probes", range(1, 7), False),
    ],
)
def test_more_of_a_knob_finds_no_less(
    name: str, fixed: dict[str, float], knob: str, values: Sequence[float], ends_exact: bool
) -> None:
    head, true = make_head(name, SOFTMAX), best(logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN), 5)
    tops = [head.with_knobs(**fixed, **{knob: value}).topk(HIDDEN, 5) for value in values]
    hits = [int((top.ids[:, :, None] == true[:, None]).sum()) for top in tops]
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]
    assert not ends_exact or hits[-1] == true.size


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("frequency", {"n": 300}),
        ("svd", {"width": 8, "candidates": 300}),
        ("screen", {"probes": 6}),
        ("lsh", {"tables": 6, "probes": 8}),
    ],
)
def test_no_knob_goes_further_than_all(name: str, most: dict[str, float]) -> None:
    beyond = {knob: min(999, HEADS[name].knob_table[knob].high) for knob in most}
    head, full = make_head(name, SOFTMAX, **beyond), make_head("full", SOFTMAX)
    assert head.knobs.items() >= most.items()
    if name in ("frequency", "svd"):
        top = head.topk(HIDDEN, 40)
        np.testing.assert_equal(top[:2], full.topk(HIDDEN, 40)[:2])
        assert not top.proven.any()
        assert (top.scanned == 300).all()


@pytest.mark.parametrize(("name", "knob"), [("frequency", "n"), ("svd", "candidates")])
def test_fewer_rows_than_k_are_left_to_the_fallback(name: str, knob: str) -> None:
    enough, few = (make_head(name, SOFTMAX, **{knob: 7}).topk(HIDDEN, k) for k in (7, 8))
    assert not enough.proven.any()
    assert (enough.scanned == 7).all()
    assert (few.proven & few.fallback).all()
    np.testing.assert_array_equal(few.ids, make_head("full", SOFTMAX).topk(HIDDEN, 8).ids)
