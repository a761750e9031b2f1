"""Log-probabilities of given ids against the full softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import default_normalizer
from tests.decoding.drawn import SIZES, constraints_of, edited_logits, softmax_of
from tests.oracle import log_probs, logits64, nearest_or_below
from tests.synthetic import make_hidden

Whole = Callable[[int, bool], LocalDecoder]


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    size=st.sampled_from(SIZES),
    tied=st.booleans(),
    rows=st.integers(1, 4),
    normalizer=st.sampled_from(["exact", "certified", None]),
)
def test_scores_are_the_log_softmax_of_what_remains(
    whole: Whole, data: st.DataObject, size: int, tied: bool, rows: int, normalizer: Any
) -> None:
    softmax, hidden, decoder = softmax_of(size, tied), make_hidden(rows, 8), whole(size, tied)
    constraints = data.draw(st.none() | constraints_of(size, rows))
    ids = st.lists(st.integers(0, size - 1), min_size=3, max_size=3)
    targets = np.array(data.draw(st.lists(ids, min_size=rows, max_size=rows)))
    logits = logits64(softmax.weight, softmax.bias, hidden)
    if constraints is not None:
        logits = edited_logits(softmax, hidden, constraints)
    if not np.isfinite(logits).any(axis=1).all():
        with pytest.raises(InvalidRequest, match="constraints: got nothing left in row"):
            decoder.score(hidden, targets, constraints=constraints, normalizer=normalizer)
        return
    reply = decoder.score(hidden, targets, constraints=constraints, normalizer=normalizer)
    answer = reply.answer
    assert answer.normalizer == (normalizer or default_normalizer(decoder.index))
    assert answer.log_z is not None
    true = np.take_along_axis(np.stack([log_probs(row) for row in logits]), targets, 1)
    assert (reply.log_probs <= 0).all()
    assert nearest_or_below(reply.log_probs, true)[answer.exact].all()
    assert normalizer != "exact" or answer.exact.all()
    assert answer.scanned.tolist() == [3] * rows
    low, high = answer.log_z_low, answer.log_z_high
    assert low is not None
    assert high is not None
    log_z = logits.max(axis=1) - np.array([log_probs(row).max() for row in logits])
    assert (low <= log_z).all()
    assert (log_z <= high).all()
    assert ((low <= answer.log_z) & (answer.log_z <= high)).all()


def test_to_candidates_what_the_head_does_not_look_at_is_impossible(whole: Whole) -> None:
    decoder, hidden, targets = whole(300, False), make_hidden(2, 8), [list(range(300))] * 2
    reply = decoder.score(hidden, targets, head="screen", normalizer="candidates")
    found = decoder.index.head("screen").candidates(hidden, 1)
    for row in range(2):
        inside = set(found.ids[found.offsets[row] : found.offsets[row + 1]].tolist())
        assert set(np.flatnonzero(np.isfinite(reply.log_probs[row])).tolist()) == inside
    np.testing.assert_allclose(np.exp(reply.log_probs).sum(axis=1), 1, rtol=1e-5)
    assert not reply.answer.exact.any()


def test_what_constraints_edit_is_a_candidate(whole: Whole) -> None:
    decoder, hidden, targets = whole(300, False), make_hidden(2, 8), [list(range(300))] * 2
    everything = Constraints(biased=list(range(300)), bias=[0.5] * 300, banned=[7])
    options: Any = {"head": "screen", "normalizer": "candidates", "constraints": everything}
    reply = decoder.score(hidden, targets, **options)
    assert np.flatnonzero(~np.isfinite(reply.log_probs[0])).tolist() == [7]
    np.testing.assert_allclose(np.exp(reply.log_probs).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 5)])
def test_targets_of_any_width(whole: Whole, shape: tuple[int, ...]) -> None:
    targets = np.zeros(shape, np.int64)
    reply = whole(17, False).score(make_hidden(2, 8), targets)
    assert reply.log_probs.shape == (2, targets.size // 2)
    assert reply.log_probs.dtype == np.float32


@pytest.mark.parametrize(
    ("targets", "options", "field"),
    [
        ([[17]], {}, "targets"),
        ([[-1]], {}, "targets"),
        ([[0], [1]], {}, "targets"),
        ([[0]], {"normalizer": "none"}, "normalizer"),
        ([[0]], {"constraints": Constraints(allowed=[])}, "constraints"),
        ([[0]], {"constraints": Constraints(allowed=[17])}, "constraints.allowed"),
    ],
)
def test_refusals(whole: Whole, targets: Any, options: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        whole(17, False).score(make_hidden(1, 8), targets, **options)
    assert refused.value.field == field
