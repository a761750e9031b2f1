"""Hash tables of SimHash codes: find the ids that share a bucket with a query.

Charikar 2002, Similarity Estimation Techniques from Rounding Algorithms. Bucket c of table l is CSR
row l 2^N + c; each table holds every id once.
"""

from collections import namedtuple
from statistics import NormalDist

import numpy as np

from logitsieve.api.results import Int32
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import few_dots, four_from, four_of, row_of
from logitsieve.kernels.simd.lanes import sixteen_floats
from logitsieve.kernels.simd.pointers import keep_alive, pointer, shift

VECTORS_AT_ONCE = 16  # share one pass over the planes
LARGEST_BITS = 16


@inline
def sides_of(vectors, rows, planes, shifts, count, dim, sides):
    """sides[row, j] = plane_j . vector + shift_j, for float32 vectors [rows, D], planes [J, D]."""
    sums = sixteen_floats()
    for j in range(0, count, 4):
        places = four_from(j, count)
        p0, p1, p2, p3 = places[0] * dim, places[1] * dim, places[2] * dim, places[3] * dim
        for row in range(0, rows, 4):
            h0, h1, h2, h3, few = four_of(row, rows)
            few_dots(
                planes, p0, p1, p2, p3,
                vectors, h0 * dim, h1 * dim, h2 * dim, h3 * dim, few, dim, sums,
            )  # fmt: skip
            for r in range(few):
                for i in range(min(4, count - j)):
                    sides[(row + r) * count + j + i] = sums[4 * r + i] + shifts[j + i]


@inline
def sides_at(vectors, row, rows, planes, shifts, count, dim, sides):
    place = row % VECTORS_AT_ONCE
    if place == 0:
        start, block = row_of(vectors, row, dim), min(VECTORS_AT_ONCE, rows - row)
        sides_of(start, block, planes, shifts, count, dim, sides)
    return row_of(sides, place, count)


@inline
def code_of(sides, table, bits):
    code = 0
    for n in range(bits):
        code |= int(sides[table * bits + n] > 0) << n
    return code


@kernel("(float32[:,::1], float32[:,:,::1], float32[::1], int32[:,::1])")
def simhash_codes(vectors, planes, shifts, codes):
    """Fill codes [B, L] of vectors [B, D] in tables of planes [L, N, D], plus `shifts` [J]."""
    rows, dim = vectors.shape
    tables, bits = planes.shape[:2]
    count = tables * bits
    sides = np.empty(VECTORS_AT_ONCE * count, np.float32)
    start, scratch = pointer(vectors), pointer(sides)
    for row in range(rows):
        own = sides_at(start, row, rows, pointer(planes), pointer(shifts), count, dim, scratch)
        for table in range(tables):
            codes[row, table] = code_of(own, table, bits)
    keep_alive(sides)


def probe_order(bits: int, probes: int) -> Int32:
    """Return the sets of planes to flip (bit r: the r-th nearest), by squared expected distance.

    Lv et al. 2007, Multi-Probe LSH, section 4.5.
    """
    ranks = np.arange(1, bits + 1) / (bits + 1)
    distances = np.array([NormalDist().inv_cdf((1 + rank) / 2) for rank in ranks])
    sets = np.arange(1 << bits, dtype=np.int32)
    costs = np.zeros(len(sets))
    for n in range(bits):
        costs += (sets >> n & 1) * distances[n] ** 2
    return sets[np.argsort(costs, kind="stable")[:probes]]


LARGEST_COUNT = (1 << 16) - 1
GUESS = 1024  # ids per query in the first block of results

# Scratch for one query: codes int64 [L], ranked int64 [J], collected int32 [V + 1]. Only the `used`
# nearest planes are ever flipped. Counts stop at `most`.
BucketLookup = namedtuple(
    "BucketLookup", "offsets ids bits order probes used most codes ranked collected"
)


def bucket_tables(codes: Int32, bits: int) -> tuple[Int32, Int32]:
    """Return (offsets int32 [L 2^N + 1], ids int32 [L V]) of codes [V, L], ascending ids."""
    vocab_size, tables = codes.shape
    offsets = np.zeros(tables * (1 << bits) + 1, np.int32)
    ids = np.empty(tables * vocab_size, np.int32)
    for table in range(tables):
        mine = codes[:, table]
        ids[table * vocab_size : (table + 1) * vocab_size] = np.argsort(mine, kind="stable")
        ends = table * vocab_size + np.cumsum(np.bincount(mine, minlength=1 << bits))
        offsets[(table << bits) + 1 : ((table + 1) << bits) + 1] = ends
    return offsets, ids


@inline
def _rank_planes(sides, bits, ranked, used):
    for n in range(bits):
        distance, place = abs(sides[n]), min(n, used)
        while place > 0 and distance < abs(sides[ranked[place - 1]]):
            if place < used:
                ranked[place] = ranked[place - 1]
            place -= 1
        if place < used:
            ranked[place] = n


@inline
def _ranks_used(order):
    used = 0
    for ranks in order:
        while ranks >> used:
            used += 1
    return used


@inline
def _flips(ranks, ranked):
    flips, r = 0, 0
    while ranks:
        if ranks & 1:
            flips |= 1 << ranked[r]
        ranks >>= 1
        r += 1
    return flips


@inline
def _collect(lookup, bucket, counts, size):
    for i in range(lookup.offsets[bucket], lookup.offsets[bucket + 1]):
        row = lookup.ids[i]
        count = int(counts[row])
        lookup.collected[size] = row  # the next row overwrites it unless it is new
        size += count == 0
        counts[row] = min(count + 1, lookup.most)
    return size


@inline
def _most_collided(collected, size, counts, limit, histogram, tables):
    for count in range(tables + 1):
        histogram[count] = 0
    for i in range(size):
        histogram[counts[collected[i]]] += 1
    least, above = tables, 0
    while above + histogram[least] < limit:
        above += histogram[least]
        least -= 1
    equals, taken = limit - above, 0
    for i in range(size):
        count = counts[collected[i]]
        counts[collected[i]] = 0
        take = count > least or (count == least and equals > 0)
        equals -= count == least
        collected[taken] = collected[i]
        taken += take
    return taken


@inline
def _look_up(lookup, sides, tables, counts):
    bits, size = lookup.bits, 0
    for table in range(tables):
        first = table * bits
        lookup.codes[table] = code_of(sides, table, bits)
        _rank_planes(shift(sides, first), bits, shift(lookup.ranked, first), lookup.used)
    for probe in range(lookup.probes):
        for table in range(tables):
            flips = _flips(lookup.order[probe], shift(lookup.ranked, table * bits))
            bucket = (table << bits) + (lookup.codes[table] ^ flips)
            size = _collect(lookup, bucket, counts, size)
    return size


@kernel(
    "(float32[:,::1], float32[:,:,::1], float32[::1], int32[::1], int32[::1], int32[::1], int64,"
    " int64, uint16[::1], int32[::1])"
)
def lsh_select(hidden, planes, shifts, offsets, ids, order, tables, limit, counts, collected):
    """Return CSR (offsets int64 [B+1], distinct ids) of the buckets probed for each row of hidden.

    A row keeps the `limit` ids that most of the first `tables` found, of equals those in nearer
    buckets. Scratch: counts [V], zeros before and after, and collected [V + 1].
    """
    rows, dim = hidden.shape
    bits = planes.shape[1]
    width = tables * bits
    sides = np.empty(min(rows, VECTORS_AT_ONCE) * width, np.float32)
    scratch = np.empty(tables + width + tables + 1, np.int64)
    codes = pointer(scratch)
    ranked, histogram = shift(codes, tables), shift(codes, tables + width)
    lookup = BucketLookup(
        pointer(offsets), pointer(ids), bits, pointer(order), order.size, _ranks_used(order),
        tables, codes, ranked, pointer(collected),
    )  # fmt: skip
    starts, out = np.zeros(rows + 1, np.int64), np.empty(rows * min(GUESS, counts.size), np.int32)
    for row in range(rows):
        own = sides_at(
            pointer(hidden), row, rows, pointer(planes), pointer(shifts), width, dim, pointer(sides)
        )
        size = _look_up(lookup, own, tables, pointer(counts))
        if limit < size:
            size = _most_collided(lookup.collected, size, pointer(counts), limit, histogram, tables)
        else:
            for i in range(size):
                counts[collected[i]] = 0
        end = starts[row] + size
        if end > out.size:
            larger = np.empty(2 * end, np.int32)
            larger[: starts[row]] = out[: starts[row]]
            out = larger
        out[starts[row] : end] = collected[:size]
        starts[row + 1] = end
    keep_alive((sides, scratch))
    return starts, out[: starts[rows]]


@kernel(
    "(float32[:,::1], float32[:,:,::1], float32[::1], int32[::1], int32[::1], int32[::1], int64,"
    " int64, uint16[:,::1])"
)
def lsh_collisions(hidden, planes, shifts, offsets, ids, order, first, last, counts):
    """Add to counts [B, V] how many of the tables first .. last-1 find an id for a query."""
    rows, dim = hidden.shape
    bits, tables = planes.shape[1], last - first
    width = tables * bits
    sides = np.empty(min(rows, VECTORS_AT_ONCE) * width, np.float32)
    scratch = np.empty(tables + width, np.int64)
    collected = np.empty(counts.shape[1] + 1, np.int32)
    lookup = BucketLookup(
        shift(pointer(offsets), first << bits), pointer(ids), bits, pointer(order), order.size,
        _ranks_used(order), LARGEST_COUNT, pointer(scratch), shift(pointer(scratch), tables),
        pointer(collected),
    )  # fmt: skip
    own_planes = shift(pointer(planes), first * bits * dim)
    own_shifts = shift(pointer(shifts), first * bits)
    for row in range(rows):
        own = sides_at(
            pointer(hidden), row, rows, own_planes, own_shifts, width, dim, pointer(sides)
        )
        _look_up(lookup, own, tables, row_of(pointer(counts), row, counts.shape[1]))
    keep_alive((sides, scratch, collected))
