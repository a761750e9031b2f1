"""Lookups in buckets, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.kernels.retrieval.hash_tables import bucket_tables
from logitsieve.training.kernels.buckets import look_up, look_up_batch


def random_codes(rows: int, tables: int, buckets: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, buckets, (rows, tables)).astype(np.int32)


V, L, C = 200, 6, 8


def lookup(
    tables: np.ndarray,
    codes: np.ndarray,
    targets: np.ndarray,
    limit: int,
    *,
    fair: bool = False,
    seed: int = 1,
    step: int = 0,
) -> tuple[list[list[int]], np.ndarray]:
    counts, found = np.zeros(V, np.uint16), np.empty(V + 1, np.int32)
    buckets = codes + np.arange(L, dtype=np.int32) * C
    made = bucket_tables(tables, 3)
    offsets, ids, sizes = look_up(
        buckets, *made, targets, limit, fair, np.uint64(seed), np.uint64(step), counts, found
    )
    assert not counts.any(), "the scratch is left as it was"
    return [part.tolist() for part in np.split(ids, offsets[1:-1])], sizes


def collisions(tables: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """[B, V]: how many tables have the row and the id in one bucket."""
    counts: np.ndarray = (codes[:, None, :] == tables[None]).sum(-1)
    return counts


@pytest.fixture
def tables() -> np.ndarray:
    """Codes [V, L]."""
    return random_codes(V, L, C, seed=4)


@pytest.mark.parametrize("limit", [V, 90, 40, 1])
def test_a_row_finds_the_ids_that_most_tables_hold(tables: np.ndarray, limit: int) -> None:
    codes = random_codes(9, L, C, seed=6)
    targets = np.random.default_rng(7).integers(0, V, (9, 2))
    targets[3, 1] = -1
    lists, sizes = lookup(tables, codes, targets, limit)
    counts = collisions(tables, codes)
    for row, ids in enumerate(lists):
        counts[row, targets[row][targets[row] >= 0]] = 0
        found = np.flatnonzero(counts[row])
        assert sizes[row] == len(found)
        best = found[np.argsort(-counts[row, found], kind="stable")][:limit]
        assert ids == sorted(best.tolist())


@pytest.mark.parametrize("limit", [V, 60, 1])
def test_a_batch_finds_the_ids_with_most_votes(tables: np.ndarray, limit: int) -> None:
    codes, targets = random_codes(30, L, C, seed=6), np.full((30, 1), 11)
    targets[5] = 17
    votes, found = np.zeros(V, np.int32), np.empty(V + 1, np.int32)
    visits = np.zeros(L * C, np.int32)
    buckets = codes + np.arange(L, dtype=np.int32) * C
    made = bucket_tables(tables, 3)
    ids = look_up_batch(buckets, *made, targets, limit, votes, found, visits)
    assert not votes.any(), "the scratch is left as it was"
    assert not visits.any(), "the scratch is left as it was"
    expected = collisions(tables, codes).sum(0)
    expected[[11, 17]] = 0
    best = np.argsort(-expected, kind="stable")[: min(limit, (expected > 0).sum())]
    assert ids.tolist() == sorted(best.tolist())


def test_a_fair_sample_keeps_each_id_equally_often(tables: np.ndarray) -> None:
    codes, targets = random_codes(1, L, C, seed=6), np.array([[3]])
    everything, sizes = lookup(tables, codes, targets, V)
    times, limit, draws = np.zeros(V), 20, 3000
    for step in range(draws):
        (ids,), again = lookup(tables, codes, targets, limit, fair=True, step=step)
        assert again == sizes
        assert len(ids) == limit
        times[ids] += 1
    share = limit / sizes[0]
    spread = (draws * share * (1 - share)) ** 0.5
    assert (np.abs(times[everything[0]] - draws * share) < 5 * spread).all()
    assert times.sum() == times[everything[0]].sum()
    # Pairs too: without replacement they are drawn together a little less than independent ones.
    assert times[everything[0]].std() < 1.5 * spread


def test_rows_and_steps_sample_apart(tables: np.ndarray) -> None:
    codes = np.repeat(random_codes(1, L, C, seed=6), 2, axis=0)
    targets = np.full((2, 1), -1)
    (first, second), _ = lookup(tables, codes, targets, 20, fair=True)
    (later, _), _ = lookup(tables, codes, targets, 20, fair=True, step=1)
    assert first != second
    assert first != later
