from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.constraints import Constraints, IdSets
from tests.refusals import refused

LISTS = ("banned", "allowed", "biased", "repeated")
EVERY_LIST = pytest.mark.parametrize("field", LISTS)


@pytest.mark.parametrize(
    ("lists", "offsets", "ids"),
    [
        ([3, 5], [0, 2, 4], [3, 5, 3, 5]),
        ((), [0, 0, 0], []),
        ([[3], []], [0, 1, 1], [3]),
        ([[], []], [0, 0, 0], []),
        ([(3, 4), np.array([5])], [0, 2, 3], [3, 4, 5]),
        (np.array([[3, 4], [5, 6]], np.uint16), [0, 2, 4], [3, 4, 5, 6]),
        (np.array([7]), [0, 1, 2], [7, 7]),
        (range(2), [0, 2, 4], [0, 1, 0, 1]),
        (torch.tensor([[1, 2], [3, 3]]), [0, 2, 4], [1, 2, 3, 3]),
        (IdSets(np.array([0, 1, 2], np.int32), np.array([8, 9], np.int32)), [0, 1, 2], [8, 9]),
    ],
)
def test_every_form(lists: Any, offsets: list[int], ids: list[int]) -> None:
    found: Any = Constraints(repeated=lists).for_rows(2).repeated
    assert found.offsets.tolist() == offsets
    assert found.ids.tolist() == ids
    assert found.offsets.dtype == found.ids.dtype == np.int32


@EVERY_LIST
@pytest.mark.parametrize(
    "lists",
    [
        *(5, "12", b"12", ["1", "2"], [1.0], [True], [None], [[1], 2], [[1], None]),
        *([[1], [2], [3]], [[[1]], [[2]]], [[1, [2]], [3]], [[1.5], [2]], [-1], [2**31], [2**70]),
        *(np.array(3), np.array([0.5]), np.array([True]), {"a": 1}),
    ],
)
def test_what_is_no_list_of_ids_is_refused(field: str, lists: Any) -> None:
    bias: Any = {"bias": [0.0]} if field == "biased" else {}
    with refused(f"constraints.{field}"):
        Constraints(**{field: lists}, **bias).for_rows(2)


@EVERY_LIST
@pytest.mark.parametrize(
    ("offsets", "ids", "part"),
    [
        ([0, 1], [1], ".offsets"),
        ([0, 1, 3], [1, 2], ".offsets"),
        ([1, 1, 2], [1, 2], ".offsets"),
        ([0, 2, 1], [1], ".offsets"),
        ([0.0, 1.0, 1.0], [1], ".offsets"),
        ([0, 1, 2], [1.0, 2.0], ".ids"),
        ([0, 1, 1], [[1]], ".ids"),
        ([0, 1, 2], [1, -2], ".ids"),
        ([0, 1, 2], [1, 1 << 31], ".ids"),
    ],
)
def test_sets_that_are_not_as_they_say(field: str, offsets: Any, ids: Any, part: str) -> None:
    lists: Any = IdSets(np.array(offsets), np.array(ids))
    bias: Any = {"bias": [0.0, 0.0]} if field == "biased" else {}
    with refused(f"constraints.{field}{part}"):
        Constraints(**{field: lists}, **bias).for_rows(2)


@pytest.mark.parametrize(
    ("biased", "bias", "values"),
    [
        ([3, 5], [0.5, -1], [0.5, -1, 0.5, -1]),
        ([3, 5], np.array([0.5, -1]), [0.5, -1, 0.5, -1]),
        ([3, 5], [[0.5, -1], [2, 3]], [0.5, -1, 2, 3]),
        ([[3], [4, 5]], [[0.5], [1, 2]], [0.5, 1, 2]),
        ([[3, 1], [4, 5]], [0.5, 2], [0.5, 2, 0.5, 2]),
        (IdSets(np.array([0, 1, 3]), np.array([3, 4, 5])), [0.5, 1, 2], [0.5, 1, 2]),
        ([], [], []),
    ],
)
def test_biases(biased: Any, bias: Any, values: list[float]) -> None:
    found = Constraints(biased=biased, bias=bias).for_rows(2).bias
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found.tolist() == values


@pytest.mark.parametrize(
    ("biased", "bias"),
    [
        *((None, [1.0]), ([3], None), ([3], [1.0, 2.0]), ([3], [np.nan]), ([3], [np.inf])),
        *(([3], [1e300]), ([3], ["1"]), ([3], [None]), ([3], 1.0)),
        *(([[3], [4, 5]], [[1.0, 2.0], [3.0]]), ([[3], [4]], [[1.0]])),
        (IdSets(np.array([0, 1, 2]), np.array([3, 4])), [1.0]),
        (IdSets(np.array([0, 1, 2]), np.array([3, 4])), [[1.0], [2.0]]),
    ],
)
def test_wrong_biases(biased: Any, bias: Any) -> None:
    with refused("constraints.bias"):
        Constraints(biased=biased, bias=bias).for_rows(2)


def test_two_biases_of_one_id() -> None:
    Constraints(biased=[[3, 4], [4, 3]], bias=[1.0, 2.0]).for_rows(2)
    with refused("constraints.biased", "got 3 twice in row 1"):
        Constraints(biased=[[3, 4], [3, 4, 3]], bias=[[1, 2], [1, 2, 3]]).for_rows(2)


@pytest.mark.parametrize("penalty", [0, -1, np.nan, np.inf, 10**400, 1e7, 1e-7, "2", None, True])
def test_wrong_penalties(penalty: Any) -> None:
    with refused("constraints.repetition_penalty"):
        Constraints(repeated=[1], repetition_penalty=penalty).for_rows(1)


def test_what_was_made_for_rows_is_made_again_alike_or_for_some_in_another_order() -> None:
    lists: Any = [[1, 2], [], [3]]
    once = Constraints(
        banned=lists, biased=lists, bias=[[1.0, 2.0], [], [3.0]], repetition_penalty=2
    ).for_rows(3)
    again = once.for_rows(3)
    assert once.repetition_penalty == again.repetition_penalty == 2.0
    for name in ("banned", "biased"):
        for one, other in zip(getattr(once, name), getattr(again, name), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.asarray(once.bias), np.asarray(again.bias))
    assert (once.allowed, once.repeated) == (None, None)
    taken = once.take(np.array([2, 0, 1, 2]))
    for name in ("banned", "biased"):
        sets = getattr(taken, name)
        assert sets.offsets.tolist() == [0, 1, 3, 3, 4]
        assert sets.ids.tolist() == [3, 1, 2, 3]
    assert np.asarray(taken.bias).tolist() == [3, 1, 2, 3]
    assert taken.allowed is None
