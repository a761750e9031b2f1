from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from logitsieve.training.kernels.buckets import fill_tables, look_up


@dataclass(frozen=True)
class Tables:
    """codes [V, L], offsets [L C + 1] and ids [L V]."""

    codes: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, buckets: int) -> "Tables":
        rows, tables = codes.shape
        offsets = np.full(tables * buckets + 1, 9, np.int32)
        made = cls(codes, offsets, np.empty(tables * rows, np.int32))
        fill_tables(made.codes, made.offsets, made.ids)
        return made

    def lists(self) -> list[list[int]]:
        return [part.tolist() for part in np.split(self.ids, self.offsets[1:-1])]


def random_codes(rows: int, tables: int, buckets: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, buckets, (rows, tables)).astype(np.int32)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("tables", [1, 5, 37])
def test_a_bucket_holds_the_ids_of_its_code(rows: int, tables: int) -> None:
    codes = random_codes(rows, tables, 8, seed=rows)
    made = Tables.of(codes, 8)
    places = product(codes.T, range(8))
    assert made.lists() == [np.flatnonzero(own == code).tolist() for own, code in places]


V, L, C = 200, 6, 8


def lookup(
    tables: Tables,
    codes: np.ndarray,
    targets: np.ndarray,
    limit: int,
    *,
    votes: np.ndarray | None = None,
    fair: bool = False,
    seed: int = 1,
    step: int = 0,
) -> tuple[list[list[int]], np.ndarray]:
    buckets = codes + np.arange(L, dtype=np.int32) * C
    votes = np.ones_like(buckets) if votes is None else votes
    offsets, ids, sizes = look_up(
        buckets, votes, tables.offsets, tables.ids, targets, limit, fair, np.uint64(seed),
        np.uint64(step), V,
    )  # fmt: skip
    return [part.tolist() for part in np.split(ids, offsets[1:-1])], sizes


def collisions(tables: Tables, codes: np.ndarray) -> np.ndarray:
    """[B, V]: how many tables have the row and the id in one bucket."""
    counts: np.ndarray = (codes[:, None, :] == tables.codes[None]).sum(-1)
    return counts


@pytest.fixture
def tables() -> Tables:
    return Tables.of(random_codes(V, L, C, seed=4), C)


@pytest.mark.parametrize("limit", [V, 90, 40, 1])
def test_a_row_finds_the_ids_that_most_tables_hold(tables: Tables, limit: int) -> None:
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
def test_buckets_count_by_their_votes(tables: Tables, limit: int) -> None:
    codes, votes = random_codes(3, L, C, seed=6), random_codes(3, L, 70_000, seed=7) + 1
    lists, _ = lookup(tables, codes, np.full((3, 1), 11), limit, votes=votes)
    for row, ids in enumerate(lists):
        expected = ((codes[row] == tables.codes) * votes[row].astype(np.int64)).sum(1)
        expected[11] = 0
        best = np.argsort(-expected, kind="stable")[: min(limit, (expected > 0).sum())]
        assert ids == sorted(best.tolist())


def test_the_order_inside_a_bucket_decides_nothing(tables: Tables) -> None:
    codes, targets = random_codes(9, L, C, seed=6), np.full((9, 1), -1)
    turned = [ids[::-1] for ids in tables.lists()]
    ordered = Tables(tables.codes, tables.offsets, np.concatenate(turned).astype(np.int32))
    for limit, fair in ((V, False), (40, False), (40, True)):
        got = lookup(tables, codes, targets, limit, fair=fair)
        expected = lookup(ordered, codes, targets, limit, fair=fair)
        assert got[0] == expected[0]


def test_a_fair_sample_keeps_each_id_equally_often(tables: Tables) -> None:
    codes, targets = random_codes(1, L, C, seed=6), np.array([[3]])
    everything, sizes = lookup(tables, codes, targets, V)
    times, limit, draws = np.zeros(V), 20, 3000
    for step in range(draws):
        (ids,), again = lookup(tables, codes, targets, limit, fair=True, step=step)
        assert (again, len(ids)) == (sizes, limit)
        times[ids] += 1
    share = limit / sizes[0]
    spread = (draws * share * (1 - share)) ** 0.5
    assert (np.abs(times[everything[0]] - draws * share) < 5 * spread).all()
    assert times.sum() == times[everything[0]].sum()
    # Pairs too: without replacement they are drawn together a little less than independent ones.
    assert times[everything[0]].std() < 1.5 * spread


def test_rows_and_steps_sample_apart(tables: Tables) -> None:
    codes = np.repeat(random_codes(1, L, C, seed=6), 2, axis=0)
    targets = np.full((2, 1), -1)
    (first, second), _ = lookup(tables, codes, targets, 20, fair=True)
    (later, _), _ = lookup(tables, codes, targets, 20, fair=True, step=1)
    assert first != second
    assert first != later
