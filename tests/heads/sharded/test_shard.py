"""A shard keeps nothing: the same arrays give the same arrays, and none of them changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from logitsieve.heads.sharded.shard import Leading, Noise, Shard, nothing_carried
from logitsieve.kernels.sampling.quick_log_z import STATE
from tests.kernels.ready import forget, ready
from tests.sharded import D, V, edits_of, shards_of, softmax_of
from tests.synthetic import make_hidden

ROWS = 5
HIDDEN, EDITS = make_hidden(ROWS, D), edits_of(0, ROWS)


def arrays(answer: Any) -> Iterator[np.ndarray]:
    if isinstance(answer, np.ndarray):
        yield answer
    elif isinstance(answer, tuple):
        for each in answer:
            yield from arrays(each)


def calls_of(shard: Shard) -> list[tuple[Any, ...]]:
    """Every method that gives arrays for arrays, and arguments."""
    tops, best = np.full(ROWS, 9.0), np.full(ROWS, 300, np.int32)
    noise = Noise(np.arange(ROWS, dtype=np.uint64), 1, 1.0, tops, np.zeros(ROWS))
    leading, sums = Leading.nobody(ROWS, 3), np.zeros((ROWS, 2))
    return [
        (shard.log_z, HIDDEN, 1.0, EDITS, sums),
        (shard.quick_log_z, HIDDEN, np.zeros((ROWS, STATE))),
        (shard.race, HIDDEN, EDITS, noise, leading, nothing_carried(ROWS)),
        (shard.bounded_race, HIDDEN, EDITS, noise, leading),
        (shard.bounded_log_z, HIDDEN, 1.0, EDITS, 0.1),
        (shard.bound_log_z, HIDDEN, 1.0, EDITS, 0.1),
        (shard.above, HIDDEN, EDITS, np.zeros(ROWS)),
        (shard.best, "exact", HIDDEN, 3),
        (shard.candidates, "certified", HIDDEN, 3),
        (shard.logits64, HIDDEN, np.arange(ROWS + 1), best),
    ]


def test_methods_change_no_argument_and_answer_in_arrays() -> None:
    for method, *given in calls_of(shards_of(3, False).shards[1]):
        before = [array.copy() for array in arrays(tuple(given))]
        first = method(*given)
        for array, same in zip(before, arrays(tuple(given)), strict=True):
            np.testing.assert_array_equal(array, same)
        for array, same in zip(arrays(first), arrays(method(*given)), strict=True):
            np.testing.assert_array_equal(array, same)


def test_a_warm_shard_compiles_nothing_more() -> None:
    shard = shards_of(3, False).shards[1]
    forget()
    shard.warm()
    warm = ready()
    for method, *given in calls_of(shard):
        method(*given)
    assert ready() == warm


def test_ids_are_those_of_the_whole_vocabulary() -> None:
    softmax, shard = softmax_of(False), shards_of(3, False).shards[1]
    rows = np.arange(shard.first, shard.first + shard.rows, dtype=np.int32)
    offsets = np.arange(ROWS + 1) * V
    logits = softmax.logits64(HIDDEN, offsets, np.tile(np.arange(V, dtype=np.int32), ROWS))
    own = logits.reshape(ROWS, V)[:, rows]
    best = shard.best("certified", HIDDEN, 2)
    np.testing.assert_array_equal(best.ids[:, 0], rows[own.argmax(axis=1)])
    np.testing.assert_array_equal(best.logits[:, 0], own.max(axis=1))
    none = np.zeros(ROWS + 1, np.int64), np.empty(0, np.int32), np.empty(0)
    ends, ids, values = shard.above(HIDDEN, none, own.max(axis=1))
    np.testing.assert_array_equal(ends, np.arange(ROWS + 1))
    np.testing.assert_array_equal(ids, best.ids[:, 0])
    np.testing.assert_array_equal(values, best.logits[:, 0])
