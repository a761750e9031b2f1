"""A lost shard's bounds hold for its rows; without them nothing is known."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, ShardUnavailable
from logitsieve.heads._base.spec import check_structure
from logitsieve.heads.sharded.lost import BOUNDS, LostShard
from logitsieve.index.split import bounds_of, shard_borders
from tests.sharded import SHARDS, D, V, shards_of, sketch_of, softmax_of
from tests.synthetic import make_hidden

ROWS = 30


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
def test_no_logit_exceeds_the_bound(shards: int, tied: bool, size: float) -> None:
    softmax, hidden = softmax_of(tied), make_hidden(ROWS, D, seed=shards, scale=size)
    bounds = bounds_of(sketch_of(tied), shard_borders(V, shards))
    check_structure(BOUNDS, bounds, V, D)
    logits = hidden.astype(np.float64) @ softmax.weight.T.astype(np.float64) + softmax.bias
    for shard in shards_of(shards, tied).shards:
        lost = LostShard(shard.first, shard.rows, D, softmax.norms, bounds)
        most = logits[:, shard.first : shard.first + shard.rows].max(axis=1)
        bound = lost.most(hidden)
        assert (bound >= most).all()
        assert (bound - most).mean() < 0.2 * np.abs(logits).max()  # it says something


def test_without_bounds_nothing_is_known_and_the_error_names_the_rows() -> None:
    lost = LostShard(256, 512, D, (1.0, 1.0), None)
    assert np.isinf(lost.most(make_hidden(2, D))).all()
    error = lost.error()
    assert isinstance(error, ShardUnavailable)
    assert str(error) == "model: rows 256 .. 767 of the vocabulary cannot be asked"


def test_a_row_that_any_shard_refuses_is_refused() -> None:
    bounds = bounds_of(sketch_of(False), [0, V])
    hidden = make_hidden(3, D)
    hidden[2, 0] = np.nan
    with pytest.raises(InvalidRequest, match=r"hidden\[2\]"):
        LostShard(0, V, D, softmax_of(False).norms, bounds).most(hidden)


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("coarse", np.zeros((-(-V // 16), 200), np.uint8), "coarse has 200 bytes a group"),
        ("norms", np.full(6, np.nan), "norms are not all finite"),
        ("directions", np.zeros((D + 1, D), np.float32), "directions has 9 rows"),
    ],
)
def test_arrays_of_another_form_are_refused(name: str, array: np.ndarray, reason: str) -> None:
    bounds = bounds_of(sketch_of(False), [0, V]) | {name: array}
    if name == "directions":
        bounds["triangle"] = np.zeros((D + 1, D + 1), np.float32)
    with pytest.raises(ValueError, match=reason):
        check_structure(BOUNDS, bounds, V, D)
