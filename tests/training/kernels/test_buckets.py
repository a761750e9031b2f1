"""Tables whose rows move, against tables made anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from logitsieve.training.kernels.buckets import ROOM, SIZE, START, fill_tables, move_rows, pool_size


@dataclass(frozen=True)
class Tables:
    """codes and places [V, L], pools [L P], extents [L C, 3], ends [L]."""

    codes: np.ndarray
    places: np.ndarray
    pools: np.ndarray
    extents: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, buckets: int) -> Tables:
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


def test_all_rows_may_end_in_one_bucket() -> None:
    tables = Tables.of(random_codes(500, 3, 32, seed=2), 32)
    for row in range(500):
        tables.move(np.array([row]), np.full((1, 3), 31, np.int32))
    check_whole(tables)
    assert tables.lists()[31] == list(range(500))
    assert sum(map(len, tables.lists()[:31])) == 0


def test_only_codes_that_change_are_moves() -> None:
    codes = random_codes(50, 4, 8, seed=3)
    tables = Tables.of(codes, 8)
    rows = np.array([3, 9, 20])
    fresh = codes[rows].copy()
    assert tables.move(rows, fresh) == 0
    fresh[1, 2] = (fresh[1, 2] + 1) % 8
    assert tables.move(rows, fresh) == 1
