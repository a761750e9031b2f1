"""The exact head over shards answers as over one W, bit for bit."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.errors import InvalidKnob, InvalidRequest
from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.sharded.dense import ShardedExact
from tests.sharded import SHARDS, D, V, edits_of, head_of, sharded_head, shut
from tests.synthetic import make_hidden

ROWS = 19
SEEDS = np.arange(ROWS, dtype=np.uint64)
FILTERS: list[dict[str, float]] = [
    {},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_p": 0.5, "min_p": 0.01},
    {"top_p": 1e-9},
]


def pair(shards: int, tied: bool) -> tuple[ExactHead, ShardedExact]:
    whole, parts = head_of("exact", tied), sharded_head("exact", shards, tied)
    return cast(ExactHead, whole), cast(ShardedExact, parts)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("k", [1, 7, 300, V])
def test_the_best_are_those_of_one_matrix(shards: int, tied: bool, k: int) -> None:
    whole, parts = pair(shards, tied)
    hidden = make_hidden(ROWS, D, seed=k)
    for one, other in zip(whole.topk(hidden, k), parts.topk(hidden, k), strict=True):
        np.testing.assert_array_equal(one, other)
    listed = whole.candidates(hidden, k), parts.candidates(hidden, k)
    for array, same in zip(*listed, strict=True):
        np.testing.assert_array_equal(array, same)


@settings(max_examples=60, deadline=None)
@given(
    shards=st.sampled_from(SHARDS),
    tied=st.booleans(),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.01, 0.5, 1.0, 3.0, 1e4]),
    size=st.sampled_from([1e-3, 0.3, 1.0, 6.0, 1e3]),
    edited=st.booleans(),
    filters=st.sampled_from(FILTERS),
)
def test_log_z_and_draws_are_those_of_one_matrix(
    shards: int,
    tied: bool,
    seed: int,
    scale: float,
    size: float,
    edited: bool,
    filters: dict[str, Any],
) -> None:
    whole, parts = pair(shards, tied)
    hidden = make_hidden(ROWS, D, seed=seed, scale=size)
    edits = edits_of(seed, ROWS) if edited else None
    np.testing.assert_array_equal(
        parts.log_z(hidden, scale, edits), whole.log_z(hidden, scale, edits)
    )
    np.testing.assert_array_equal(parts.quick_log_z(hidden), whole.quick_log_z(hidden))
    draws = [
        head.draw(hidden, DrawOptions(4, SEEDS, seed, scale, edits, **filters))
        for head in (whole, parts)
    ]
    for one, other in zip(*draws, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("filters", FILTERS)
def test_a_shard_of_which_nothing_is_left(filters: dict[str, Any]) -> None:
    whole, parts = pair(3, True)
    hidden = make_hidden(ROWS, D)
    for shard in parts._shards:
        edits = shut(shard.first, shard.first + shard.rows, ROWS)
        np.testing.assert_array_equal(
            parts.log_z(hidden, 1.0, edits), whole.log_z(hidden, 1.0, edits)
        )
        draws = [
            head.draw(hidden, DrawOptions(4, SEEDS, 0, 1.0, edits, **filters))
            for head in (whole, parts)
        ]
        for one, other in zip(*draws, strict=True):
            np.testing.assert_array_equal(one, other)


def test_it_refuses_what_one_matrix_refuses() -> None:
    whole, parts = pair(3, False)
    hidden = make_hidden(3, D)
    hidden[1, 2] = np.nan
    for bad, k in ((hidden, 1), (hidden * np.float32(1e37), 1), (hidden[:1], V + 1)):
        with pytest.raises(InvalidRequest) as of_one:
            whole.topk(bad, k)
        with pytest.raises(InvalidRequest) as of_parts:
            parts.topk(bad, k)
        assert str(of_one.value) == str(of_parts.value)
    with pytest.raises(InvalidKnob, match="no such knob"):
        parts.with_knobs(depth=3)
    assert parts.with_knobs() is parts
