"""The screen over shards: the lists of one W, whose logits lie in several places."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from tests.sharded import SHARDS, D, head_of, sharded_head
from tests.synthetic import make_hidden

HIDDEN = make_hidden(40, D)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize(
    "knobs", [{}, {"probes": 2}, {"probes": 3, "escalate": 0.4}, {"escalate": 0.5, "prescreen": 1}]
)
def test_answers_are_those_of_one_matrix(shards: int, tied: bool, knobs: dict[str, float]) -> None:
    whole = head_of("screen", tied).with_knobs(**knobs)
    parts = sharded_head("screen", shards, tied).with_knobs(**knobs)
    for k in (1, 5, 50):  # lists of fewer than 50 are answered by the fallback
        one, other = whole.topk(HIDDEN, k), parts.topk(HIDDEN, k)
        for name in ("ids", "logits", "exact"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        listed = whole.candidates(HIDDEN, k), parts.candidates(HIDDEN, k)
        for array, same in zip(*listed, strict=True):
            np.testing.assert_array_equal(array, same)
    assert whole.knobs == parts.knobs


def test_a_row_that_is_not_finite_is_refused_by_its_number() -> None:
    hidden = HIDDEN.copy()
    hidden[20, 3] = np.inf
    parts = sharded_head("screen", 3, False)
    for call in (parts.topk, parts.candidates):
        with pytest.raises(InvalidRequest, match=r"hidden\[20\]"):
            call(hidden, 3)
