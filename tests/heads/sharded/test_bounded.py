"""The certified head over shards: the ids and draws of one W, and a proven log Z."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.results import Float32, Float64
from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.heads._base.head import no_edits
from logitsieve.heads.exact import ExactHead, interval_of
from logitsieve.heads.sharded import ReplicatedRows, Shard, ShardedSoftmax
from logitsieve.heads.sharded.bounded import ShardedCertified, summed
from logitsieve.heads.sharded.shard import Best
from logitsieve.index.shard_parts import replicated_of
from logitsieve.kernels.topk.merge import HIGH, LOW
from tests.sharded import (
    SHARDS,
    D,
    V,
    edits_of,
    head_of,
    rows_of_shards,
    sharded_head,
    shards_of,
    shut,
    softmax_of,
)
from tests.synthetic import make_hidden

ROWS = 11
SEEDS = np.arange(ROWS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def pair(shards: int, tied: bool) -> tuple[ExactHead, ShardedCertified]:
    whole, parts = head_of("exact", tied), sharded_head("certified", shards, tied)
    return cast(ExactHead, whole), cast(ShardedCertified, parts)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("k", [1, 7, 300])
def test_the_best_are_those_of_one_matrix(shards: int, tied: bool, k: int) -> None:
    whole, parts = pair(shards, tied)
    hidden = make_hidden(ROWS, D, seed=k)
    for one, other in zip(whole.topk(hidden, k)[:3], parts.topk(hidden, k)[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    listed = parts.candidates(hidden, k)
    logits = whole.candidates(hidden, k).logits.reshape(ROWS, V)
    best = whole.topk(hidden, k)
    for row in range(ROWS):
        ids = listed.ids[listed.offsets[row] : listed.offsets[row + 1]]
        assert set(best.ids[row].tolist()) <= set(ids.tolist())
        outside = np.delete(logits[row], ids)
        assert outside.size == 0 or outside.max() <= listed.upper[row]


@settings(max_examples=40, deadline=None)
@given(
    shards=st.sampled_from(SHARDS),
    tied=st.booleans(),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
    size=st.sampled_from([0.1, 1.0, 6.0]),
    edited=st.booleans(),
)
def test_draws_by_bounds_are_those_of_one_matrix(
    shards: int, tied: bool, seed: int, scale: float, size: float, edited: bool
) -> None:
    whole, parts = pair(shards, tied)
    hidden = make_hidden(ROWS, D, seed=seed, scale=size)
    edits = edits_of(seed, ROWS) if edited else None
    ids, fields, _ = whole.draw(hidden, DrawOptions(3, SEEDS, seed, scale, edits))
    drawn, log_z, scanned = parts.draw(hidden, DrawOptions(3, SEEDS, seed, scale, edits))
    np.testing.assert_array_equal(drawn, ids)
    _, low, high = interval_of(fields, scale).T
    assert (log_z[:, LOW] <= high).all()
    assert (log_z[:, HIGH] >= low).all()
    assert tied or scanned.max() < V  # none needed all logits
    asked = shards_of(shards, tied).shards
    every = edits or no_edits(ROWS)
    first = np.sum([each.bound_log_z(hidden, scale, every, np.inf)[2] for each in asked], axis=0)
    assert (scanned >= np.minimum(first, V)).all()


@pytest.mark.parametrize("samples", [1, 40])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_draws_by_all_logits_are_those_of_one_matrix(
    monkeypatch: pytest.MonkeyPatch, samples: int, filters: dict[str, Any]
) -> None:
    monkeypatch.setattr("logitsieve.heads.certified.PRODUCTS_A_DRAW", V * D)
    whole, parts = pair(3, True)
    hidden = make_hidden(ROWS, D)
    ids, fields, scanned = whole.draw(hidden, DrawOptions(samples, SEEDS, 5, 0.7, None, **filters))
    drawn = parts.draw(hidden, DrawOptions(samples, SEEDS, 5, 0.7, None, **filters))
    np.testing.assert_array_equal(drawn[0], ids)
    np.testing.assert_array_equal(drawn[1], fields)
    np.testing.assert_array_equal(drawn[2], scanned)


@pytest.mark.parametrize("width", [np.inf, 0.1, 1e-3])
@pytest.mark.parametrize("shards", SHARDS)
def test_log_z_lies_in_its_interval_which_is_as_narrow_as_asked_for(
    shards: int, width: float
) -> None:
    whole, parts = pair(shards, False)
    hidden = make_hidden(ROWS, D)
    for edits in (None, edits_of(1, ROWS), shut(0, 256, ROWS)):
        _, low, high = interval_of(whole.log_z(hidden, 1.0, edits), 1.0).T
        _, value, least, most = parts.log_z(hidden, 1.0, edits, width).T
        assert (least <= high).all()
        assert (most >= low).all()
        assert ((least <= value) & (value <= most)).all()
        assert (most - least <= width * 1.001).all()


def test_a_shard_of_which_nothing_is_left_wins_no_draw() -> None:
    whole, parts = pair(3, True)
    hidden = make_hidden(ROWS, D)
    first = parts._shards[1].first
    edits = shut(first, first + parts._shards[1].rows, ROWS)
    np.testing.assert_array_equal(
        parts.draw(hidden, DrawOptions(1, SEEDS, 0, 1.0, edits))[0],
        whole.draw(hidden, DrawOptions(1, SEEDS, 0, 1.0, edits))[0],
    )


def test_a_sum_of_intervals_holds_what_they_hold() -> None:
    some = np.array([[0.0, -1e-3, 1e-3], [700.0, 700.0, 700.0], [-np.inf] * 3])
    parts = [np.pad(some, ((0, 0), (1, 0))), np.zeros((3, 4))]
    _, value, low, high = summed(parts, 1.0).T
    assert abs(value[0] - np.log(2.0)) < 1e-12
    assert low[0] < np.log1p(np.exp(-1e-3)) < value[0] < np.log1p(np.exp(1e-3)) < high[0]
    assert low[1] < 700.0 < high[1]
    assert low[2] < 0.0 < high[2]


class Asked:
    """A shard that notes the floors it is asked with, as a proxy of one elsewhere or not."""

    def __init__(self, shard: Shard, remote: bool) -> None:
        self.first, self.rows, self.dim = shard.first, shard.rows, shard.dim
        self.norms, self.remote, self._shard = shard.norms, remote, shard
        self.floors: Any = "not asked"

    def begin(self, question: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: question(self)

    def best(self, head: str, hidden: Float32, k: int, floors: Float64 | None = None) -> Best:
        self.floors = floors
        return self._shard.best(head, hidden, k, floors)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("count", [0, 3, 200])
def test_no_shard_looks_for_rows_below_k_that_are_known(
    shards: int, tied: bool, k: int, remote: bool, count: int
) -> None:
    hidden, softmax = make_hidden(ROWS, D, seed=k), softmax_of(tied)
    asked: Any = [Asked(shard, remote) for shard in shards_of(shards, tied).shards]
    ids = np.random.default_rng(k).permutation(V)[:count].astype(np.int32)
    replicated = None
    if count:
        arrays = replicated_of(rows_of_shards(shards, tied), ids)
        replicated = ReplicatedRows(arrays, softmax.norms)
    top = ShardedCertified(ShardedSoftmax(asked, None, replicated)).topk(hidden, k)
    wanted = head_of("exact", tied).topk(hidden, k)
    np.testing.assert_array_equal(top.ids, wanted.ids)
    np.testing.assert_array_equal(top.logits, wanted.logits)
    floors = None
    if replicated is not None:
        floors = replicated.best(hidden, k).logits[:, -1] if count >= k else None
    elif not remote and shards > 1:
        assert asked.pop(0).floors is None
        first = shards_of(shards, tied).shards[0]
        floors = first.best("exact", hidden, k).logits[:, -1]
    for shard in asked:
        np.testing.assert_array_equal(shard.floors, floors)
