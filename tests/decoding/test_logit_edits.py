"""What constraints do to logits, against brute force."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.results import Candidates
from logitsieve.decoding.logit_edits import HEADROOM, Edits, edit_candidates, edits_of
from tests.decoding.drawn import SIZES, constraints_of, edited_logits, of_row, softmax_of
from tests.oracle import logits64
from tests.refusals import refused
from tests.synthetic import make_hidden


def applied(edits: Edits, logits_BV: np.ndarray) -> np.ndarray:
    """[B, V] the logits with the edits in their places."""
    found = logits_BV.copy()
    if edits.allow_list:
        found[:] = -np.inf
    rows = np.repeat(np.arange(len(found)), np.diff(edits.offsets))
    found[rows, edits.ids] = edits.values
    return found


@given(data=st.data(), size=st.sampled_from(SIZES), rows=st.integers(1, 4))
def test_edits_are_what_the_words_say(data: st.DataObject, size: int, rows: int) -> None:
    constraints, hidden = data.draw(constraints_of(size, rows)), make_hidden(rows, 8)
    softmax = softmax_of(size, False)
    edits = edits_of(softmax, constraints, hidden)
    expected = edited_logits(softmax, hidden, constraints)
    plain = logits64(softmax.weight, softmax.bias, hidden)
    np.testing.assert_array_equal(applied(edits, plain), expected)
    remaining = np.isfinite(expected).sum(axis=1)
    np.testing.assert_array_equal(edits.remaining(size), remaining)
    for row in range(rows):
        ids = edits.ids[edits.offsets[row] : edits.offsets[row + 1]]
        assert (np.diff(ids) > 0).all()
        assert not edits.allow_list or len(ids) == remaining[row]


@given(data=st.data(), rows=st.integers(2, 5))
def test_a_row_is_edited_as_if_it_were_alone(data: st.DataObject, rows: int) -> None:
    softmax, hidden = softmax_of(17, False), make_hidden(rows, 8)
    constraints = data.draw(constraints_of(17, rows))
    order = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows)))
    edits = edits_of(softmax, constraints, hidden)
    taken = edits_of(softmax, constraints.for_rows(rows).take(order), hidden[order])
    alone = [edits_of(softmax, of_row(constraints, row), hidden[[row]]) for row in order]
    for found in (edits.rows(order), taken):
        np.testing.assert_array_equal(np.diff(found.offsets), [one.ids.size for one in alone])
        np.testing.assert_array_equal(found.ids, np.concatenate([one.ids for one in alone]))
        np.testing.assert_array_equal(found.values, np.concatenate([one.values for one in alone]))
        assert {found.allow_list} == {one.allow_list for one in alone}


def test_a_head_is_called_once_for_as_many_edits_as_the_page_of_exactness_says() -> None:
    assert HEADROOM == 8


@pytest.mark.parametrize("field", ["banned", "allowed", "biased", "repeated"])
def test_ids_beyond_the_vocabulary(field: str) -> None:
    lists: Any = {field: [3, 17], "bias": [1.0, 1.0] if field == "biased" else None}
    constraints = Constraints(**lists)
    with refused(f"constraints.{field}", "got 17, allowed: ids from 0 to 16"):
        edits_of(softmax_of(17, False), constraints, make_hidden(2, 8))


def test_a_row_of_hidden_that_is_not_finite_is_named() -> None:
    hidden = make_hidden(3, 8)
    hidden[1, 2] = np.nan
    with refused("hidden[1]"):
        edits_of(softmax_of(17, False), Constraints(banned=[3]), hidden)


@given(
    data=st.data(),
    size=st.sampled_from([1, 2, 17]),
    rows=st.integers(1, 4),
    constrained=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_edits_go_before_candidates(
    data: st.DataObject, size: int, rows: int, constrained: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    lists = [random.permutation(size)[: random.integers(0, size + 1)] for _ in range(rows)]
    ids = np.concatenate(lists).astype(np.int32)
    logits = random.standard_normal(ids.size).astype(np.float32)
    offsets = np.cumsum([0, *map(len, lists)])
    found = Candidates(offsets, ids, logits, np.zeros(rows, np.float32))
    edits = None
    if constrained:
        constraints = data.draw(constraints_of(size, rows)).for_rows(rows)
        edits = edits_of(softmax_of(size, False), constraints, make_hidden(rows, 8))
    got = edit_candidates(found, edits, size)
    for row in range(rows):
        ends = slice(offsets[row], offsets[row + 1])
        wanted = dict(zip(ids[ends].tolist(), logits[ends].tolist(), strict=True))
        if edits is not None:
            if edits.allow_list:
                wanted = {}
            ends = slice(edits.offsets[row], edits.offsets[row + 1])
            wanted |= dict(zip(edits.ids[ends].tolist(), edits.values[ends].tolist(), strict=True))
        ends = slice(got.offsets[row], got.offsets[row + 1])
        assert len(set(got.ids[ends].tolist())) == got.ids[ends].size
        assert dict(zip(got.ids[ends].tolist(), got.logits[ends].tolist(), strict=True)) == wanted
        assert got.answerable()[row] == sum(value > -np.inf for value in wanted.values())
