"""exact: all rows of W, their log Z, and draws that follow it."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidKnob, InvalidRequest
from logitsieve.heads import ExactHead
from logitsieve.heads.exact import DrawOptions
from tests.oracle import chi_square_p, log_sum_exp, logits64, softmax
from tests.synthetic import make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(60, 8), make_hidden(3, 8)
TRUE = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
HEAD = ExactHead(SOFTMAX)


def test_every_row_is_a_candidate_and_nothing_is_outside() -> None:
    candidates = HEAD.candidates(HIDDEN, 5)
    assert np.diff(candidates.offsets).tolist() == [60] * 3
    np.testing.assert_array_equal(candidates.logits.reshape(3, 60), TRUE.astype(np.float32))
    assert (candidates.upper == -np.inf).all()


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_log_z_is_the_oracles(scale: float) -> None:
    wanted = [log_sum_exp(scale * row) for row in TRUE]
    top, value, low, high = HEAD.log_z(HIDDEN, scale).T
    np.testing.assert_allclose(scale * top + value, wanted, rtol=1e-13)
    assert ((low <= value) & (value <= high)).all()
    assert (high - low < 3e-12).all()


def test_a_quick_log_z_is_an_interval() -> None:
    _, _, low, high = HEAD.quick_log_z(HIDDEN).T
    wanted = [log_sum_exp(row) for row in TRUE]
    assert ((low <= wanted) & (wanted <= high)).all()


def test_draws_follow_the_softmax() -> None:
    seeds = np.arange(3, dtype=np.uint64)
    ids, log_z, scanned = HEAD.draw(HIDDEN, DrawOptions(4000, seeds))
    for row in range(3):
        counts = np.bincount(ids[row], minlength=60)
        assert chi_square_p(counts, softmax(TRUE[row])) > 1e-6
    wanted = [log_sum_exp(row) for row in TRUE]
    np.testing.assert_allclose(log_z[:, 0] + log_z[:, 1], wanted, rtol=1e-12)
    assert scanned.tolist() == [60] * 3


def test_edited_ids_have_the_given_logits() -> None:
    edits = np.array([0, 59]), np.delete(np.arange(60), 7).astype(np.int32), np.full(59, -np.inf)
    ids, log_z, _ = HEAD.draw(HIDDEN[:1], DrawOptions(20, np.zeros(1, np.uint64), edits=edits))
    assert (ids == 7).all()
    assert log_z[0].tolist()[:2] == [TRUE[0, 7], 0.0]


def test_a_row_that_is_not_finite_has_no_draw_and_no_log_z() -> None:
    hidden = HIDDEN.copy()
    hidden[2, 0] = np.nan
    with pytest.raises(InvalidRequest) as refused:
        HEAD.log_z(hidden, 1.0)
    assert refused.value.field == "hidden[2]"
    with pytest.raises(InvalidRequest):
        HEAD.draw(hidden, DrawOptions(1, np.zeros(3, np.uint64)))


def test_it_has_no_knobs() -> None:
    assert HEAD.knobs == {}
    with pytest.raises(InvalidKnob):
        HEAD.with_knobs(probes=1)
