"""What is known of each row: candidates but for edits, and all edits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.results import Candidates
from logitsieve.decoding.known import known
from logitsieve.decoding.logit_edits import edits_of
from tests.decoding.drawn import constraints_of, softmax_of
from tests.synthetic import make_hidden


@settings(max_examples=100, deadline=None)
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
    got = known(found, edits, size)
    for row in range(rows):
        ends = slice(offsets[row], offsets[row + 1])
        wanted = dict(zip(ids[ends].tolist(), logits[ends].tolist(), strict=True))
        if edits is not None:
            if edits.only[row]:
                wanted = {}
            ends = slice(edits.offsets[row], edits.offsets[row + 1])
            wanted |= dict(zip(edits.ids[ends].tolist(), edits.values[ends].tolist(), strict=True))
        ends = slice(got.offsets[row], got.offsets[row + 1])
        assert len(set(got.ids[ends].tolist())) == got.ids[ends].size
        assert dict(zip(got.ids[ends].tolist(), got.logits[ends].tolist(), strict=True)) == wanted
        assert got.open()[row] == sum(value > -np.inf for value in wanted.values())
