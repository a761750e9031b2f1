from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.heads._base.edits import Edits
from tests.decoding.drawn import SIZES, Whole, constraints_of, edited_logits, softmax_of
from tests.oracle import best, logits64
from tests.refusals import refused
from tests.synthetic import make_hidden

EVERY_HEAD = pytest.mark.parametrize("name", ["full", "sketch", "screen"])


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
    constraints, hidden_states = data.draw(constraints_of(size, rows)), make_hidden(rows, 8)
    softmax = softmax_of(size, False)
    edits = edits_of(softmax, constraints, hidden_states)
    expected = edited_logits(softmax, hidden_states, constraints)
    plain = logits64(softmax.weight, softmax.bias, hidden_states)
    np.testing.assert_array_equal(applied(edits, plain), expected)
    remaining = np.isfinite(expected).sum(axis=1)
    np.testing.assert_array_equal(edits.remaining(size), remaining)
    for row in range(rows):
        ids = edits.ids[edits.offsets[row] : edits.offsets[row + 1]]
        assert (np.diff(ids) > 0).all()
        assert not edits.allow_list or len(ids) == remaining[row]


@pytest.mark.parametrize("field", ["banned", "allowed", "biased", "repeated"])
def test_ids_beyond_the_vocabulary(field: str) -> None:
    lists: Any = {field: [3, 17], "bias": [1.0, 1.0] if field == "biased" else None}
    constraints = Constraints(**lists)
    with refused(f"constraints.{field}", "got 17, allowed: ids from 0 to 16"):
        edits_of(softmax_of(17, False), constraints, make_hidden(2, 8))


def test_a_row_of_hidden_that_is_not_finite_is_named() -> None:
    hidden_states = make_hidden(3, 8)
    hidden_states[1, 2] = np.nan
    with refused("hidden_states[1]"):
        edits_of(softmax_of(17, False), Constraints(banned=[3]), hidden_states)


@EVERY_HEAD
@given(data=st.data(), size=st.sampled_from(SIZES), tied=st.booleans(), rows=st.integers(1, 5))
def test_the_answer_is_the_full_softmaxs_over_what_remains(
    whole: Whole, name: Any, data: st.DataObject, size: int, tied: bool, rows: int
) -> None:
    softmax, decoder, hidden_states = (
        softmax_of(size, tied),
        whole(size, tied),
        make_hidden(rows, 8),
    )
    constraints = data.draw(constraints_of(size, rows))
    expected = edited_logits(softmax, hidden_states, constraints)
    remaining = np.isfinite(expected).sum(axis=1)
    if (remaining == 0).any():
        with pytest.raises(InvalidRequest, match="k: got 1, allowed: at most 0, "):
            decoder.topk(hidden_states, 1, head=name, constraints=constraints)
        return
    k = data.draw(st.integers(1, int(remaining.min())))
    found = decoder.topk(hidden_states, k, head=name, constraints=constraints)
    chosen = np.take_along_axis(expected, found.ids.astype(np.int64), 1)
    np.testing.assert_array_equal(found.logits, chosen.astype(np.float32), strict=True)
    assert np.isfinite(chosen).all()
    assert (np.diff(np.sort(found.ids, axis=1), axis=1) > 0).all()
    order = np.lexsort((found.ids, -chosen), axis=1)
    np.testing.assert_array_equal(order, np.tile(np.arange(k), (rows, 1)))
    proven, scanned, fallback = found.answer[4:7]
    np.testing.assert_array_equal(found.ids[proven], best(expected, k)[proven])
    proves = decoder.index.head(name).proves
    assert proves <= bool(proven.all())
    assert not (fallback & (proves | ~proven)).any()
    assert ((k <= scanned) & (scanned <= size)).all()
    for row in range(rows):
        own = constraints.for_rows(rows).take(np.array([row]))
        alone = decoder.topk(hidden_states[[row]], k, head=name, constraints=own)
        mine = [each[row : row + 1] for each in (*found[:2], *found.answer[4:7])]
        if rows > decoder.index.head(name).most_rows:  # which compute all logits
            mine[3] = alone.answer.scanned
        np.testing.assert_equal([*alone[:2], *alone.answer[4:7]], mine)


@EVERY_HEAD
@pytest.mark.parametrize("k", [6, 17])
def test_more_than_what_remains_is_refused(whole: Whole, name: Any, k: int) -> None:
    asked: Any = {"constraints": Constraints(allowed=[[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5]])}
    with pytest.raises(InvalidRequest, match="at most 5, which the constraints leave in row 1"):
        whole(17, False).topk(make_hidden(2, 8), k, head=name, **asked)


def test_a_few_allowed_ids_need_no_head(whole: Whole) -> None:
    few, hidden_states = Constraints(allowed=[7, 9, 8]), make_hidden(2, 8)
    answer = whole(300, False).topk(hidden_states, 2, head="screen", constraints=few).answer
    assert answer.proven.all()
    assert not answer.fallback.any()
    assert answer.scanned.tolist() == [3, 3]


def test_no_rule_changes_nothing_and_what_a_head_looks_at_may_all_be_banned(
    decoder: LocalDecoder,
) -> None:
    hidden_states = make_hidden(3)
    for head in decoder.index.heads:
        plain = decoder.topk(hidden_states, 4, head=head)
        reply = decoder.topk(hidden_states, 4, head=head, constraints=Constraints())
        np.testing.assert_equal(reply[:2], plain[:2])
        np.testing.assert_array_equal(reply.answer.proven, plain.answer.proven)
    found = decoder.index.head("screen").candidates(hidden_states, 1)
    banned = [ids.tolist()[3:] for ids in np.split(found.ids, found.offsets[1:-1])]
    constraints = Constraints(banned=banned)
    reply = decoder.topk(hidden_states, 4, head="screen", constraints=constraints)
    assert reply.answer.fallback.all()
    assert reply.answer.proven.all()
    worst = decoder.topk(hidden_states, 300, head="full").ids[:, 150:]
    plain = decoder.topk(hidden_states, 4, head="screen")
    reply = decoder.topk(
        hidden_states, 4, head="screen", constraints=Constraints(banned=list(worst))
    )
    np.testing.assert_array_equal(reply.ids, plain.ids)
    np.testing.assert_array_equal(reply.answer.scanned, plain.answer.scanned)
