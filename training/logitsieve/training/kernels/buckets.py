"""Hash tables with rows that move: each bucket is a stretch of its table's pool, with free places.

A row moves in constant time: the last id of the old bucket takes its place. A full bucket moves to
the end of the pool with twice the places; a full pool is laid out again, with a quarter of its size
free. Look-ups read contiguous buckets. Results do not depend on the order of ids in a bucket.

Shape letters: C buckets a table, U rows that move, P the pool of a table; in look-ups P buckets
that a row looks into.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits
from logitsieve.training.kernels.random_numbers import mixed

START, SIZE, ROOM = range(3)  # of a bucket, in `extents` [L C, 3]; starts count from the first pool
LEAST_ROOM = 4  # free places in a bucket of a new layout
SIDE_BY_SIDE = 16  # tables laid out at once: as many codes share a cache line


def pool_size(rows: int, buckets: int) -> int:
    """Return P: the largest new layout, and its free places again."""
    return rows + rows // 2 + (LEAST_ROOM + 1) * buckets


@inline
def _lay_out(extents, ends, table, buckets, pool):
    end = table * pool
    for bucket in range(table * buckets, (table + 1) * buckets):
        size = extents[bucket, SIZE]
        extents[bucket, START], extents[bucket, SIZE] = end, 0
        extents[bucket, ROOM] = size + size // 4 + LEAST_ROOM
        end += extents[bucket, ROOM]
    ends[table] = end


@inline
def _fill(codes, places, pools, extents, ends, first, last):
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
    """Move a full bucket to the pool's end; False if it does not fit."""
    start, size = extents[bucket, START], extents[bucket, SIZE]
    space = 2 * extents[bucket, ROOM]
    if ends[table] + space > pool_end:
        return False
    for i in range(size):
        row = pools[start + i]
        pools[ends[table] + i] = row
        places[row, table] = ends[table] + i
    extents[bucket, START], extents[bucket, ROOM] = ends[table], space
    ends[table] += space
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
    """Put rows [U] into the buckets fresh [U, L]; return the number of moves."""
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


FIRST_ROOM = 1024  # ids a row in the first block of results


@inline
def _count(extents, pools, bucket, weight, counts, distinct, size):
    """Add `weight` to the counts of a bucket's ids; append new ones to `distinct`."""
    start = extents[bucket, START]
    for i in range(start, start + extents[bucket, SIZE]):
        row = pools[i]
        count = counts[row]
        distinct[size] = row  # overwritten by the next one unless it is new
        size += count == 0
        counts[row] = count + weight
    return size


@inline
def _drop_targets(targets, counts, distinct, size):
    for i in range(targets.size):
        if targets[i] >= 0:
            counts[targets[i]] = 0
    left = 0
    for i in range(size):
        distinct[left] = distinct[i]
        left += counts[distinct[i]] > 0
    return left


@inline
def _keep_most(counts, distinct, size, limit, largest):
    """Keep the `limit` ids with the largest counts, of equals the lower; reset the counts."""
    tally = np.zeros(largest + 1, np.int64)
    for i in range(size):
        tally[counts[distinct[i]]] += 1
    least, above = largest, 0
    while above + tally[least] < limit:
        above += tally[least]
        least -= 1
    equals = np.empty(tally[least], np.uint64)
    number, left = 0, 0
    for i in range(size):
        if counts[distinct[i]] == least:
            equals[number] = distinct[i]
            number += 1
    last = np.int64(np.partition(equals, limit - above - 1)[limit - above - 1])
    for i in range(size):
        row, count = distinct[i], counts[distinct[i]]
        counts[row] = 0
        distinct[left] = row
        left += count > least or (count == least and row <= last)
    return left


@inline
def _keep_fair(counts, distinct, size, limit, key):
    numbers = np.empty(size, np.uint64)
    for i in range(size):
        numbers[i] = mixed(key, distinct[i])
    last = np.partition(numbers, limit - 1)[limit - 1]
    left = 0
    for i in range(size):
        row = distinct[i]
        counts[row] = 0
        distinct[left] = row
        left += mixed(key, row) <= last and left < limit
    return left


@inline
def _forget(counts, distinct, size):
    for i in range(size):
        counts[distinct[i]] = 0


@kernel(
    "(int32[:,::1], int32[:,::1], int32[::1], int64[:,::1], int64, boolean, uint64, uint64,"
    " uint16[::1], int32[::1])"
)
def look_up(
    buckets: Int32, extents: Int32, pools: Int32, targets: Int64, limit: int, fair: bool,
    seed: int, step: int, counts: np.ndarray, distinct: Int32,
) -> tuple[Int64, Int32, Int64]:  # fmt: skip
    """Return the ids in each row's buckets [B, P] as CSR (offsets [B+1], ids), and counts [B].

    Ids ascend, without the row's targets [B, M] (padded by -1). Of more than `limit` ids the ones
    in most buckets stay, or, if `fair`, a uniform sample. Scratch: counts [V], zeros before and
    after, and distinct [V + 1].
    """
    rows, probes = buckets.shape
    offsets, sizes = np.zeros(rows + 1, np.int64), np.empty(rows, np.int64)
    out = np.empty(rows * min(FIRST_ROOM, limit), np.int32)
    for row in range(rows):
        size = 0
        for p in range(probes):
            size = _count(extents, pools, buckets[row, p], 1, counts, distinct, size)
        size = _drop_targets(targets[row], counts, distinct, size)
        sizes[row] = size
        if size <= limit:
            _forget(counts, distinct, size)
        elif fair:
            key, _ = random_bits(seed, step, OUTSIDE | np.uint64(row), np.uint64(0xFFFFFFFF))
            size = _keep_fair(counts, distinct, size, limit, key)
        else:
            size = _keep_most(counts, distinct, size, limit, probes)
        end = offsets[row] + size
        if end > out.size:
            larger = np.empty(2 * end, np.int32)
            larger[: offsets[row]] = out[: offsets[row]]
            out = larger
        out[offsets[row] : end] = np.sort(distinct[:size])
        offsets[row + 1] = end
    return offsets, out[: offsets[rows]], sizes


@kernel(
    "(int32[:,::1], int32[:,::1], int32[::1], int64[:,::1], int64, int32[::1], int32[::1],"
    " int32[::1])"
)
def look_up_batch(
    buckets: Int32, extents: Int32, pools: Int32, targets: Int64, limit: int, votes: Int32,
    distinct: Int32, visits: Int32,
) -> Int32:  # fmt: skip
    """Return at most `limit` ids that rows find most often, without any row's targets.

    An id's votes are the pairs of a row and a bucket of buckets [B, P] that holds it. Ids ascend.
    Scratch: votes [V] and visits [buckets], zeros before and after, and distinct [V + 1].
    """
    rows, probes = buckets.shape
    size = 0
    for p in range(probes):
        for row in range(rows):
            visits[buckets[row, p]] += 1
        for row in range(rows):
            bucket = buckets[row, p]
            if visits[bucket]:
                size = _count(extents, pools, bucket, visits[bucket], votes, distinct, size)
                visits[bucket] = 0
    size = _drop_targets(targets.ravel(), votes, distinct, size)
    if size > limit:
        size = _keep_most(votes, distinct, size, limit, rows * probes)
    else:
        _forget(votes, distinct, size)
    return np.sort(distinct[:size])
