"""Look up ids in buckets: bucket i holds ids[offsets[i] : offsets[i + 1]]."""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits
from logitsieve.training.kernels.random_numbers import mixed

FIRST_ROOM = 1024  # ids a row in the first block of results


@inline
def _count(offsets, ids, bucket, weight, counts, distinct, size):
    """Add `weight` to the counts of a bucket's ids; append new ones to `distinct`."""
    for i in range(offsets[bucket], offsets[bucket + 1]):
        row = ids[i]
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
    "(int32[:,::1], int32[::1], int32[::1], int64[:,::1], int64, boolean, uint64, uint64,"
    " uint16[::1], int32[::1])"
)
def look_up(
    buckets: Int32, starts: Int32, held: Int32, targets: Int64, limit: int, fair: bool,
    seed: int, step: int, counts: np.ndarray, distinct: Int32,
) -> tuple[Int64, Int32, Int64]:  # fmt: skip
    """Return the ids held in each row's P buckets [B, P] as CSR, and their numbers before a limit
    [B].

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
            size = _count(starts, held, buckets[row, p], 1, counts, distinct, size)
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
    "(int32[:,::1], int32[::1], int32[::1], int64[:,::1], int64, int32[::1], int32[::1],"
    " int32[::1])"
)
def look_up_batch(
    buckets: Int32, starts: Int32, held: Int32, targets: Int64, limit: int, votes: Int32,
    distinct: Int32, visits: Int32,
) -> Int32:  # fmt: skip
    """Return at most `limit` ids, ascending, in most pairs of a row and a bucket, without any
    targets.

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
                size = _count(starts, held, bucket, visits[bucket], votes, distinct, size)
                visits[bucket] = 0
    size = _drop_targets(targets.ravel(), votes, distinct, size)
    if size > limit:
        size = _keep_most(votes, distinct, size, limit, rows * probes)
    else:
        _forget(votes, distinct, size)
    return np.sort(distinct[:size])
