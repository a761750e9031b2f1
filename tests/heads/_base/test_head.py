"""Requests made ready, knobs checked, and the softmax as it was given."""

from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.errors import InvalidKnob, InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.heads._base.head import (
    Knob,
    checked_k,
    checked_knobs,
    ready_hidden,
    ready_request,
    softmax_sha256,
)

TABLE = {
    "probes": Knob(help="", default=2, low=1, high=8),
    "share": Knob(help="", default=0.5, low=0, high=1, whole=False),
}


def test_a_ready_array_is_not_copied() -> None:
    hidden = np.ones((3, 4), np.float32)
    assert ready_hidden(hidden, 4) is hidden
    ready, rows, k = ready_request(hidden, 2, 4, 10)
    assert ready is hidden
    assert (rows, k) == (3, 2)


def test_anything_else_is_made_ready() -> None:
    ready, rows, k = ready_request([1.0, 2.0], cast(int, np.int64(2)), 2, 10)
    assert ready.dtype == np.float32
    assert ready.shape == (1, 2)
    assert (rows, type(k)) == (1, int)


@pytest.mark.parametrize(
    "hidden", [np.ones((3, 8), np.float32)[:, ::2], np.ones((3, 4)), np.ones(4, np.float32)]
)
def test_arrays_of_another_layout_or_type_are_copied(hidden: np.ndarray) -> None:
    ready, rows, k = ready_request(hidden, 2, 4, 10)
    assert ready.dtype == np.float32
    assert ready.flags.c_contiguous
    np.testing.assert_array_equal(ready, np.ones((hidden.size // 4, 4)))
    assert (rows, k) == (hidden.size // 4, 2)


@pytest.mark.parametrize(
    ("hidden", "k", "field"),
    [
        (np.ones((3, 5), np.float32), 2, "hidden"),
        (np.ones((0, 4), np.float32), 2, "hidden"),
        (np.ones((2, 2, 4), np.float32), 2, "hidden"),
        (np.ones((3, 5), np.float32), 0, "hidden"),
        (np.ones((3, 4), np.float32), 0, "k"),
        (np.ones((3, 4), np.float32), 11, "k"),
        (np.ones((3, 4), np.float32), True, "k"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field(hidden: np.ndarray, k: int, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ready_request(hidden, k, 4, 10)
    assert refused.value.field == field


@pytest.mark.parametrize("k", [0, 11, True, 2.0, "2", None])
def test_a_k_that_is_no_number_of_answers_is_refused(k: Any) -> None:
    with pytest.raises(InvalidRequest, match="k"):
        checked_k(k, 10)


def test_an_operating_point_is_whole() -> None:
    assert checked_knobs(TABLE, {}, {}) == {"probes": 2, "share": 0.5}
    assert checked_knobs(TABLE, {"probes": 3}, {"share": 1}) == {"probes": 3, "share": 1.0}


@pytest.mark.parametrize("change", [{"probes": 9}, {"probes": 1.5}, {"share": -1}, {"other": 1}])
def test_a_change_beyond_the_table_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(InvalidKnob, match=next(iter(change))):
        checked_knobs(TABLE, {}, change)


def test_a_half_type_is_widened_once_and_kept_as_given() -> None:
    stored = np.array([[1, 0.5], [2, 3]], np.float16)
    softmax = Softmax(stored, np.zeros(2, np.float32))
    assert softmax.stored is stored
    assert softmax.weight is softmax.weight
    np.testing.assert_array_equal(softmax.weight, stored.astype(np.float32))
    assert (softmax.vocab_size, softmax.dim) == (2, 2)


def test_the_identity_of_a_matrix_covers_its_shape_and_its_bias() -> None:
    weight, bias = np.arange(21, dtype=np.float32).reshape(7, 3), np.ones(7, np.float32)
    known = softmax_sha256(weight, bias)
    assert softmax_sha256(weight.copy(), bias.copy()) == known
    assert softmax_sha256(weight, bias + 1) != known
    # The same numbers in the same order, cut elsewhere.
    numbers = np.arange(12, dtype=np.float32)
    wide = softmax_sha256(numbers[:9].reshape(3, 3), numbers[9:])
    assert wide != softmax_sha256(numbers[:6].reshape(6, 1), numbers[6:])


def test_a_softmax_is_hashed_once() -> None:
    weight, bias = np.arange(21, dtype=np.float32).reshape(7, 3), np.ones(7, np.float32)
    softmax, before = Softmax(weight, bias), softmax_sha256(weight, bias)
    assert softmax.sha256 == before
    weight[3, 1] += 1
    assert softmax.sha256 == before != softmax_sha256(weight, bias)
