"""Long lists: the best of every chunk, chunk by chunk, are the best of all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.gpu.kernels.status import NO_ID, PASSED_ON, WANTED
from logitsieve.gpu.plans.screen import ChunkBest, Routed
from tests.gpu.softmaxes import sweep, tensor


def routed(*counts: int) -> Routed:
    """Rows with so many values."""
    one = tensor(np.zeros((len(counts), 1), np.int32))
    status = tensor(np.full(len(counts), WANTED.value, np.int32))
    return Routed(one, one, tensor(np.array(counts, np.int32)), status)


def expected(values: np.ndarray, ids: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest, equal values by the lower id; rising."""
    return np.sort(ids[np.lexsort((ids, -values))[:k]])


@pytest.mark.parametrize(
    ("dtype", "k", "slots", "chunk"),
    sweep(
        (np.float64, 5, 8, 1024), (np.float32, 900, 900, 2048),
        more=[
            (np.float32, 5, 8, 1024), (np.float32, 100, 100, 1024), (np.float64, 100, 100, 1024),
            (np.float64, 900, 900, 2048),
        ],
    ),
)  # fmt: skip
def test_the_best_of_chunks_hold_the_best_of_all(
    dtype: type, k: int, slots: int, chunk: int
) -> None:
    """Many values are equal, and the lengths are not whole chunks."""
    random = np.random.default_rng(0)
    values: np.ndarray = random.integers(-200, 200, (3, 5000)).astype(dtype)
    ids = random.permuted(np.tile(np.arange(9000, dtype=np.int32), (3, 1)), axis=1)[:, :5000].copy()
    counts = 5000, 4097, 1800
    level = ChunkBest(tensor(values), tensor(ids), routed(*counts), k, slots, chunk)
    level.run()
    while level.chunks > 1:
        level = ChunkBest(level.best, level.names, routed(*counts), k, slots, chunk)
        level.run()
    for row, count in enumerate(counts):
        found = np.sort(level.names[row].cpu().numpy())
        assert (found[k:] == NO_ID.value).all()
        wanted = expected(values[row, :count], ids[row, :count], k)
        np.testing.assert_array_equal(found[:k], wanted)


def test_places_are_ids_where_there_are_none() -> None:
    values = np.random.default_rng(1).standard_normal((2, 3000)).astype(np.float32)
    level = ChunkBest(tensor(values), None, routed(3000, 3000), 7, 7, 4096)
    level.run()
    for row in range(2):
        wanted = expected(values[row], np.arange(3000), 7)
        np.testing.assert_array_equal(np.sort(level.names[row].cpu().numpy()), wanted)


def test_what_is_nobodys_takes_no_slot() -> None:
    """A chunk with fewer ids of its own than are kept."""
    values, ids = np.full((1, 2048), -np.inf), np.full((1, 2048), NO_ID.value, np.int32)
    places = [3, 500, 1023, 1024, 2000]
    values[0, places], ids[0, places] = [1, 2, 3, 4, 5], [10, 20, 30, 40, 50]
    level = ChunkBest(tensor(values), tensor(ids), routed(2048), 4, 4, 1024)
    level.run()
    assert sorted(level.names[0].tolist()) == [10, 20, 30, 40, 50, *[NO_ID.value] * 3]
    assert sorted(level.best[0].tolist()) == [*[-np.inf] * 3, 1, 2, 3, 4, 5]


def test_rows_that_are_not_wanted_are_left_alone() -> None:
    rows = routed(1500, 1500)
    rows.status[1] = PASSED_ON.value
    level = ChunkBest(tensor(np.zeros((2, 1500))), None, rows, 3, 4, 1024)
    level.names.fill_(-7)
    level.run()
    assert (level.names[0] != -7).all()
    assert torch.equal(level.names[1], torch.full_like(level.names[1], -7))
