from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import HEADS, Head
from logitsieve.heads._base.spec import check_structure, check_values
from tests.refusals import refused
from tests.synthetic import lsh_arrays, make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(60)
FULL = make_head("full", SOFTMAX)
TRUE = FULL.topk(HIDDEN, 5).ids


head = partial(make_head, "lsh", SOFTMAX)


def found(head: Head, k: int = 1) -> list[set[int]]:
    candidates = head.candidates(HIDDEN, k)
    return [set(ids.tolist()) for ids in np.split(candidates.ids, candidates.offsets[1:-1])]


def test_every_probe_of_a_table_is_the_whole_vocabulary_and_a_cap_below_k_starves_no_row() -> None:
    top = head(tables=1, probes=8).topk(HIDDEN, 5)
    np.testing.assert_array_equal(top.ids, TRUE)
    np.testing.assert_array_equal(top.logits, FULL.topk(HIDDEN, 5).logits)
    assert (top.scanned == SOFTMAX.vocab_size).all()
    assert not top.proven.any()
    top = head(tables=6, probes=8, candidates=3).topk(HIDDEN, 20)
    np.testing.assert_array_equal(top.scanned, np.full(60, 20))
    assert head().knobs == {"tables": 6, "probes": 1, "candidates": 0}


def test_rows_with_too_few_go_to_the_fallback() -> None:
    lonely = head(tables=1)
    sizes = np.array([len(ids) for ids in found(lonely)])
    k = int(np.median(sizes))
    few = sizes < k
    assert few.any()
    top = lonely.topk(HIDDEN, k)
    np.testing.assert_array_equal(top.proven, few)
    np.testing.assert_array_equal(top.ids[few], FULL.topk(HIDDEN[few], k).ids)


def at(place: int, to: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.where(np.arange(array.size) == place, to, array)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("offsets", lambda array: np.where(np.arange(49) == 8, array - 1, array), "as many ids"),
        ("offsets", at(3, 200), "offsets do not rise"),
        ("planes", lambda array: np.zeros((6, 17, SOFTMAX.dim)), "17 bits"),
        ("planes", lambda array: np.zeros((4097, 3, SOFTMAX.dim)), "4097 tables"),
    ],
)
def test_arrays_that_kernels_would_misread_are_refused(
    name: str, damage: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    arrays = lsh_arrays(SOFTMAX)
    arrays[name] = np.ascontiguousarray(damage(arrays[name]), arrays[name].dtype)
    with refused("arrays", message):
        head(arrays=arrays)


def test_verifying_finds_an_id_twice_in_a_table() -> None:
    arrays = lsh_arrays(SOFTMAX)
    part: Any = HEADS["lsh"].part
    check_values(part, arrays, lambda _: None)
    arrays["ids"][300 + 7] = arrays["ids"][300 + 8]
    check_structure(part, arrays, SOFTMAX.vocab_size, SOFTMAX.dim)
    with pytest.raises(ValueError, match="table 1 does not hold every id"):
        check_values(part, arrays, lambda _: None)
