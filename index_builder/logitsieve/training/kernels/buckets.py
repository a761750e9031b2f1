"""Hash tables of rows, and look-ups of the distinct ids in some buckets.

Tables are CSR: bucket i has ids[offsets[i] : offsets[i + 1]]. Results do not depend on the order of
ids in a bucket.

Shape letters: C buckets of a table, P buckets that a row looks up.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits
from logitsieve.training.kernels.random_numbers import mixed

SIDE_BY_SIDE = 16  # as many codes share a cache line
FIRST_ROOM = 1024


@kernel("(int32[:,::1], int32[::1], int32[::1])")
def fill_tables(codes: Int32, offsets: Int32, ids: Int32) -> None:
    """Fill offsets [L C + 1] and ids [L V], ascending in a bucket, given codes [V, L]."""
    rows, tables = codes.shape
    buckets = offsets.size // tables
    offsets[:] = 0
    for first in range(0, tables, SIDE_BY_SIDE):
        for row in range(rows):
            for table in range(first, min(first + SIDE_BY_SIDE, tables)):
                offsets[table * buckets + codes[row, table]] += 1
    for bucket in range(1, offsets.size):
        offsets[bucket] += offsets[bucket - 1]
    # Buckets are filled backwards, which turns their ends into starts.
    for first in range(0, tables, SIDE_BY_SIDE):
        for row in range(rows - 1, -1, -1):
            for table in range(first, min(first + SIDE_BY_SIDE, tables)):
                bucket = table * buckets + codes[row, table]
                offsets[bucket] -= 1
                ids[offsets[bucket]] = row


@inline
def _count(offsets, ids, bucket, votes, counts, distinct, size):
    for i in range(offsets[bucket], offsets[bucket + 1]):
        row = ids[i]
        count = counts[row]
        distinct[size] = row  # overwritten by the next row unless this one is new
        size += count == 0
        counts[row] = count + votes
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
    """Keep the `limit` ids with the largest counts, of ties the lower ids; reset the counts."""
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
    "(int32[:,::1], int32[:,::1], int32[::1], int32[::1], int64[:,::1], int64, boolean, uint64,"
    " uint64, int64)"
)
def look_up(
    buckets: Int32, votes: Int32, offsets: Int32, ids: Int32, targets: Int64, limit: int,
    fair: bool, seed: int, step: int, n_classes: int,
) -> tuple[Int64, Int32, Int64]:  # fmt: skip
    """Return the ids in each row's buckets [B, P] as CSR, and their counts before `limit` [B].

    Ids ascend, without the row's targets [B, M] (padded by -1). At most `limit` ids are kept: those
    with the most votes of buckets [B, P] or, if `fair`, a uniform sample.
    """
    rows, probes = buckets.shape
    starts, sizes = np.zeros(rows + 1, np.int64), np.empty(rows, np.int64)
    out = np.empty(rows * min(FIRST_ROOM, limit), np.int32)
    counts, distinct = np.zeros(n_classes, np.int32), np.empty(n_classes + 1, np.int32)
    for row in range(rows):
        size = 0
        for p in range(probes):
            size = _count(offsets, ids, buckets[row, p], votes[row, p], counts, distinct, size)
        size = _drop_targets(targets[row], counts, distinct, size)
        sizes[row] = size
        if size <= limit:
            _forget(counts, distinct, size)
        elif fair:
            key, _ = random_bits(seed, step, OUTSIDE | np.uint64(row), np.uint64(0xFFFFFFFF))
            size = _keep_fair(counts, distinct, size, limit, key)
        else:
            size = _keep_most(counts, distinct, size, limit, votes[row].sum())
        end = starts[row] + size
        if end > out.size:
            larger = np.empty(2 * end, np.int32)
            larger[: starts[row]] = out[: starts[row]]
            out = larger
        out[starts[row] : end] = np.sort(distinct[:size])
        starts[row + 1] = end
    return starts, out[: starts[rows]], sizes
