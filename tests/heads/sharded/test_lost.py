"""What is known of a lost shard's rows holds for them; without bounds nothing is known."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, ShardUnavailable
from logitsieve.heads._base.spec import check_structure
from logitsieve.heads.sharded.lost import BOUNDS, Bounds, LostShard
from logitsieve.index.shard_parts import bounds_of
from logitsieve.index.split import shard_borders
from tests.kernels.ready import forget, ready
from tests.sharded import SHARDS, D, V, rows_of_shards, shards_of, softmax_of
from tests.synthetic import make_hidden

ROWS = 30
REPLICATED = np.array([0, 1, 255, 256, 700, V - 1], np.int32)
NONE = np.empty(0, np.int32)


def arrays_of(shards: int, tied: bool = False, ids: np.ndarray = NONE) -> dict[str, np.ndarray]:
    """The part `bounds` of the softmax of tests in so many shards."""
    return bounds_of(rows_of_shards(shards, tied), ids)


def known(shards: int, tied: bool = False, ids: np.ndarray = NONE) -> Bounds:
    borders = shard_borders(V, shards)
    return Bounds(arrays_of(shards, tied, ids), borders, softmax_of(tied).norms, ids)


@pytest.mark.parametrize("ids", [NONE, REPLICATED, np.arange(V, dtype=np.int32)])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
def test_what_is_known_holds(shards: int, tied: bool, size: float, ids: np.ndarray) -> None:
    softmax, hidden = softmax_of(tied), make_hidden(ROWS, D, seed=shards, scale=size)
    bounds = known(shards, tied, ids)
    offsets, every = np.arange(ROWS + 1) * V, np.tile(np.arange(V, dtype=np.int32), ROWS)
    logits = softmax.logits64(hidden, offsets, every).reshape(ROWS, V)
    for shard in shards_of(shards, tied).shards:
        lost = LostShard(shard.first, shard.rows, bounds)
        own = np.zeros(V, np.bool_)
        own[shard.first : shard.first + shard.rows] = True
        others = own & ~np.isin(np.arange(V), ids)
        if others.any():
            largest = logits[:, others].max(axis=1)
            assert lost.reach(hidden, largest).all()
            spread = np.abs(logits).max(axis=1)
            assert lost.reach(hidden, largest + 0.2 * spread).mean() < 0.5  # it says something
        else:
            assert not lost.reach(hidden, np.full(ROWS, -1e30)).any()


def test_bounds_are_of_the_rows_that_are_not_replicated() -> None:
    arrays = arrays_of(3, ids=REPLICATED)
    check_structure(BOUNDS, arrays, V, D)
    assert len(arrays["fine"]) == len(arrays["bias"]) == V - len(REPLICATED)


def test_without_bounds_nothing_is_known_and_the_error_names_the_rows() -> None:
    lost = LostShard(256, 512, None)
    assert lost.reach(make_hidden(2, D), np.full(2, np.inf)).all()
    error = lost.error()
    assert isinstance(error, ShardUnavailable)
    assert str(error) == "model: rows 256 .. 767 of the vocabulary cannot be asked"


def test_warm_bounds_compile_nothing_more() -> None:
    bounds = known(3, ids=REPLICATED)
    forget()
    bounds.warm()
    warm = ready()
    for first in shard_borders(V, 3)[:-1]:
        bounds.of(first).reach(make_hidden(3, D), np.zeros(3))
    assert ready() == warm


def test_a_row_that_any_shard_refuses_is_refused() -> None:
    lost = LostShard(0, V, known(1))
    hidden = make_hidden(3, D)
    hidden[2, 0] = np.nan
    with pytest.raises(InvalidRequest, match=r"hidden\[2\]"):
        lost.reach(hidden, np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"coarse": np.zeros((-(-V // 16), 200), np.uint8)}, "coarse has 200 bytes a group"),
        ({"fine": np.zeros((V - 6, 100), np.uint8)}, "fine has 100 bytes a row"),
        ({"norms": np.full(6, np.nan)}, "norms are not all finite"),
        (
            {"directions": np.zeros((9, D), np.float32), "triangle": np.zeros((9, 9), np.float32)},
            "directions has 9 rows",
        ),
        ({"bias": np.zeros(V, np.float32)}, "bias is float32"),
    ],
)
def test_arrays_of_another_form_are_refused(changes: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_structure(BOUNDS, arrays_of(1, ids=REPLICATED) | changes, V, D)


@pytest.mark.parametrize("ids", [NONE, REPLICATED[:-1]])
def test_another_number_of_rows_is_refused(ids: np.ndarray) -> None:
    arrays = arrays_of(2, ids=REPLICATED)
    with pytest.raises(ValueError, match="rows and groups, needed"):
        Bounds(arrays, shard_borders(V, 2), softmax_of(False).norms, ids)
