"""Tables whose rows move, against tables made anew; lookups, against plain numpy."""

from dataclasses import dataclass

import numpy as np
import pytest

from logitsieve.training.kernels.buckets import (
    ROOM,
    SIZE,
    START,
    fill_tables,
    look_up,
    look_up_batch,
    move_rows,
    pool_size,
)


@dataclass(frozen=True)
class Tables:
    """codes and places [V, L], pools [L P], extents [L C, 3], ends [L]."""

    codes: np.ndarray
    places: np.ndarray
    pools: np.ndarray
    extents: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, buckets: int) -> "Tables":
        rows, tables = codes.shape
        places = np.empty((rows, tables), np.int32)
        pools = np.empty(tables * pool_size(rows, buckets), np.int32)
        extents = np.empty((tables * buckets, 3), np.int32)
        made = cls(codes.copy(), places, pools, extents, np.empty(tables, np.int32))
        fill_tables(made.codes, places, pools, extents, made.ends)
        return made

    def move(self, rows: np.ndarray, fresh: np.ndarray) -> int:
        moves: int = move_rows(
            rows, fresh, self.codes, self.places, self.pools, self.extents, self.ends
        )
        return moves

    def lists(self) -> list[list[int]]:
        return [
            sorted(self.pools[start : start + size].tolist()) for start, size, _ in self.extents
        ]


def random_codes(rows: int, tables: int, buckets: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, buckets, (rows, tables)).astype(np.int32)


def check_whole(tables: Tables) -> None:
    """Every id is where `places` says, in the bucket of its code, and stretches do not overlap."""
    rows, count = tables.codes.shape
    buckets = len(tables.extents) // count
    bucket = tables.codes + np.arange(count) * buckets
    np.testing.assert_array_equal(
        tables.pools[tables.places], np.arange(rows)[:, None] + 0 * bucket
    )
    start, size = tables.extents[bucket, START], tables.extents[bucket, SIZE]
    assert ((start <= tables.places) & (tables.places < start + size)).all()
    assert (tables.extents[:, SIZE] <= tables.extents[:, ROOM]).all()
    order = np.argsort(tables.extents[:, START])
    ends = (tables.extents[:, START] + tables.extents[:, ROOM])[order]
    assert (ends[:-1] <= tables.extents[order[1:], START]).all()
    assert ends[-1] <= len(tables.pools)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("tables", [1, 5, 37])
def test_a_bucket_holds_the_ids_of_its_code(rows: int, tables: int) -> None:
    codes = random_codes(rows, tables, 8, seed=rows)
    made = Tables.of(codes, 8)
    check_whole(made)
    expected = [
        np.flatnonzero(codes[:, table] == code).tolist()
        for table in range(tables)
        for code in range(8)
    ]
    assert made.lists() == expected


def test_a_thousand_updates_leave_what_a_new_table_would_hold() -> None:
    random = np.random.default_rng(0)
    tables = Tables.of(random_codes(200, 6, 16, seed=1), 16)
    for number in range(1000):
        rows = random.choice(200, 20, replace=False).astype(np.int64)
        # In turns spread, and crowded into few buckets, so that these outgrow their room.
        most = 16 if number // 100 % 2 else 2
        tables.move(rows, random.integers(0, most, (20, 6)).astype(np.int32))
    check_whole(tables)
    assert tables.lists() == Tables.of(tables.codes, 16).lists()


def test_rows_move_where_their_codes_say() -> None:
    tables = Tables.of(random_codes(500, 3, 32, seed=2), 32)
    for row in range(500):
        tables.move(np.array([row]), np.full((1, 3), 31, np.int32))
    check_whole(tables)
    assert tables.lists()[31] == list(range(500))
    assert sum(map(len, tables.lists()[:31])) == 0
    codes = random_codes(50, 4, 8, seed=3)
    tables = Tables.of(codes, 8)
    rows = np.array([3, 9, 20])
    fresh = codes[rows].copy()
    assert tables.move(rows, fresh) == 0
    fresh[1, 2] = (fresh[1, 2] + 1) % 8
    assert tables.move(rows, fresh) == 1


V, L, C = 200, 6, 8


def lookup(
    tables: Tables,
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
    offsets, ids, sizes = look_up(
        buckets, tables.extents, tables.pools, targets, limit, fair, np.uint64(seed),
        np.uint64(step), counts, found,
    )  # fmt: skip
    assert not counts.any(), "the scratch is left as it was"
    return [part.tolist() for part in np.split(ids, offsets[1:-1])], sizes


def collisions(tables: Tables, codes: np.ndarray) -> np.ndarray:
    """[B, V]: how many tables have the row and the id in one bucket."""
    counts: np.ndarray = (codes[:, None, :] == tables.codes[None]).sum(-1)
    return counts


@pytest.fixture
def tables() -> Tables:
    """Tables that have been through moves, so that their buckets are in no order."""
    random, made = np.random.default_rng(5), Tables.of(random_codes(V, L, C, seed=4), C)
    for _ in range(50):
        rows = random.choice(V, 20, replace=False).astype(np.int64)
        made.move(rows, random.integers(0, C, (20, L)).astype(np.int32))
    return made


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
def test_a_batch_finds_the_ids_with_most_votes(tables: Tables, limit: int) -> None:
    codes, targets = random_codes(30, L, C, seed=6), np.full((30, 1), 11)
    targets[5] = 17
    votes, found = np.zeros(V, np.int32), np.empty(V + 1, np.int32)
    visits = np.zeros(L * C, np.int32)
    buckets = codes + np.arange(L, dtype=np.int32) * C
    ids = look_up_batch(buckets, tables.extents, tables.pools, targets, limit, votes, found, visits)
    assert not votes.any(), "the scratch is left as it was"
    assert not visits.any(), "the scratch is left as it was"
    expected = collisions(tables, codes).sum(0)
    expected[[11, 17]] = 0
    best = np.argsort(-expected, kind="stable")[: min(limit, (expected > 0).sum())]
    assert ids.tolist() == sorted(best.tolist())


def test_the_order_inside_a_bucket_decides_nothing(tables: Tables) -> None:
    codes, targets = random_codes(9, L, C, seed=6), np.full((9, 1), -1)
    ordered = Tables.of(tables.codes, C)
    assert tables.pools.tolist() != ordered.pools.tolist()
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
        assert again == sizes
        assert len(ids) == limit
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
