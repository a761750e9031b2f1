"""Hash tables whose rows move: each bucket is a stretch of its table's pool, with room to grow.

A row is taken out of a bucket and put into another in constant time: the last id of the old bucket
takes its place. A bucket without room moves to the end of the pool with twice the room; a pool
without room is laid out anew, which the quarter of room that every bucket then gets pays for.
Buckets are contiguous, not linked: a look-up reads them in order, and it is look-ups that count.
The order of the ids in a bucket depends on earlier moves: nothing may depend on it.

Shape letters: V rows, L tables, C buckets a table, U rows that move, P the pool of a table.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Int32
from logitsieve.kernels.compile import inline, kernel

START, SIZE, ROOM = range(3)  # of a bucket, in `extents` [L C, 3]; starts count from the first pool
LEAST_ROOM = 4  # free places in a bucket of a new layout
SIDE_BY_SIDE = 16  # tables laid out at once: as many codes share a cache line


def pool_size(rows: int, buckets: int) -> int:
    """P: the most that a new layout takes, and its spare room again."""
    return rows + rows // 2 + (LEAST_ROOM + 1) * buckets


@inline
def _lay_out(extents, ends, table, buckets, pool):
    """Give the counted buckets of a table their stretches, and make them empty."""
    end = table * pool
    for bucket in range(table * buckets, (table + 1) * buckets):
        size = extents[bucket, SIZE]
        extents[bucket, START], extents[bucket, SIZE] = end, 0
        extents[bucket, ROOM] = size + size // 4 + LEAST_ROOM
        end += extents[bucket, ROOM]
    ends[table] = end


@inline
def _fill(codes, places, pools, extents, ends, first, last):
    """Lay out the tables first .. last-1 from the codes alone; ids ascend in a bucket."""
    rows, buckets = codes.shape[0], extents.shape[0] // codes.shape[1]
    extents[first * buckets : last * buckets, SIZE] = 0
    for row in range(rows):
        for table in range(first, last):
            extents[table * buckets + codes[row, table], SIZE] += 1
    for table in range(first, last):
        _lay_out(extents, ends, table, buckets, pools.size // codes.shape[1])
    for row in range(rows):
        for table in range(first, last):
            _append(places, pools, extents, table * buckets + codes[row, table], row, table)


@inline
def _append(places, pools, extents, bucket, row, table):
    place = extents[bucket, START] + extents[bucket, SIZE]
    pools[place] = row
    places[row, table] = place
    extents[bucket, SIZE] += 1


@inline
def _take_out(places, pools, extents, bucket, row, table):
    extents[bucket, SIZE] -= 1
    moved, place = pools[extents[bucket, START] + extents[bucket, SIZE]], places[row, table]
    pools[place] = moved
    places[moved, table] = place


@inline
def _grow(places, pools, extents, ends, bucket, table, pool_end):
    """Move a full bucket to the pool's end; False where that has too little room."""
    start, size = extents[bucket, START], extents[bucket, SIZE]
    room = 2 * extents[bucket, ROOM]
    if ends[table] + room > pool_end:
        return False
    for i in range(size):
        row = pools[start + i]
        pools[ends[table] + i] = row
        places[row, table] = ends[table] + i
    extents[bucket, START], extents[bucket, ROOM] = ends[table], room
    ends[table] += room
    return True


@kernel("(int32[:,::1], int32[:,::1], int32[::1], int32[:,::1], int32[::1])")
def fill_tables(codes: Int32, places: Int32, pools: Int32, extents: Int32, ends: Int32) -> None:
    """Make tables of codes [V, L]: places [V, L], pools [L P], extents [L C, 3] and ends [L]."""
    tables = codes.shape[1]
    for first in range(0, tables, SIDE_BY_SIDE):
        _fill(codes, places, pools, extents, ends, first, min(tables, first + SIDE_BY_SIDE))


@kernel(
    "(int64[::1], int32[:,::1], int32[:,::1], int32[:,::1], int32[::1], int32[:,::1], int32[::1])"
)
def move_rows(
    rows: np.ndarray, fresh: Int32, codes: Int32, places: Int32, pools: Int32, extents: Int32,
    ends: Int32,
) -> int:  # fmt: skip
    """Put rows [U] into the buckets that fresh [U, L] names; returns how many moves that took."""
    tables, moves = codes.shape[1], 0
    buckets, pool = extents.shape[0] // tables, pools.size // tables
    for i in range(rows.size):
        row = rows[i]
        for table in range(tables):
            if codes[row, table] == fresh[i, table]:
                continue
            moves += 1
            old, new = codes[row, table], fresh[i, table]
            _take_out(places, pools, extents, table * buckets + old, row, table)
            codes[row, table] = new
            bucket = table * buckets + new
            if extents[bucket, SIZE] == extents[bucket, ROOM] and not _grow(
                places, pools, extents, ends, bucket, table, (table + 1) * pool
            ):
                _fill(codes, places, pools, extents, ends, table, table + 1)
            else:
                _append(places, pools, extents, bucket, row, table)
    return moves
