"""Replicated rows answer as an index of them would, whichever shards they are of."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.heads._base.spec import check_structure
from logitsieve.heads.sharded import REPLICATED, ReplicatedRows
from logitsieve.index.shard_parts import replicated_of
from tests.kernels.ready import forget, ready
from tests.sharded import SHARDS, D, V, rows_of_shards, softmax_of
from tests.synthetic import make_hidden

ROWS = 30
FEW = np.array([700, 0, V - 1, 256, 1, 255], np.int32)
MANY = np.random.default_rng(1).permutation(V)[: V // 2].astype(np.int32)


def arrays_of(shards: int, tied: bool = False, ids: np.ndarray = FEW) -> dict[str, np.ndarray]:
    """The part `replicated` of the softmax of tests in so many shards."""
    return replicated_of(rows_of_shards(shards, tied), ids)


@pytest.mark.parametrize("ids", [FEW, MANY])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_best_of_them_are_found(shards: int, tied: bool, ids: np.ndarray, k: int) -> None:
    softmax, hidden = softmax_of(tied), make_hidden(ROWS, D, seed=shards)
    best = ReplicatedRows(arrays_of(shards, tied, ids), softmax.norms).best(hidden, k)
    rising = np.sort(ids)
    offsets, every = np.arange(ROWS + 1) * len(ids), np.tile(rising, ROWS)
    logits = softmax.logits64(hidden, offsets, every).reshape(ROWS, len(ids))
    order = np.lexsort((np.broadcast_to(rising, logits.shape), -logits))[:, :k]
    np.testing.assert_array_equal(best.ids, rising[order])
    np.testing.assert_array_equal(best.logits, np.take_along_axis(logits, order, 1))


def test_the_part_does_not_depend_on_the_shards() -> None:
    arrays = arrays_of(1)
    check_structure(REPLICATED, arrays, V, D)
    np.testing.assert_array_equal(arrays["weight"], softmax_of(False).weight[np.sort(FEW)])
    np.testing.assert_array_equal(arrays["ids"][arrays["order"]], FEW)
    for name, array in arrays_of(5).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_threads_share_many_rows_of_hidden() -> None:
    rows, hidden = (
        ReplicatedRows(arrays_of(3, ids=MANY), softmax_of(False).norms),
        make_hidden(99, D),
    )
    for one, other in zip(rows.best(hidden, 4), rows.on(3).best(hidden, 4), strict=True):
        np.testing.assert_array_equal(one, other)


def test_warm_rows_compile_nothing_more() -> None:
    rows = ReplicatedRows(arrays_of(3, ids=MANY), softmax_of(False).norms)
    forget()
    rows.warm()
    warm = ready()
    rows.best(make_hidden(3, D), 4)
    assert ready() == warm


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ids": FEW}, "ids do not rise"),
        ({"ids": np.full(6, V, np.int32)}, "ids reach"),
        ({"order": np.full(6, 6, np.int32)}, "order reach"),
        ({"bias": np.zeros(V, np.float32)}, "bias is float32"),
        ({"norms": np.full(6, np.nan)}, "norms are not all finite"),
    ],
)
def test_arrays_of_another_form_are_refused(changes: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_structure(REPLICATED, arrays_of(2) | changes, V, D)
