"""SimHash: the sides of random hyperplanes on which a vector lies, `bits` planes a table.

Charikar 2002, Similarity Estimation Techniques from Rounding Algorithms: two vectors at an angle t
are on the same side of a random plane with probability 1 - t / pi.

Shape letters: B vectors, D their size, L tables, N bits a table, J = L N planes.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from logitsieve.api.results import Int32
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import dots_1x4, dots_4x4, four_from, row_of
from logitsieve.kernels.simd.pointers import keep_alive, pointer, shift

AT_ONCE = 16  # vectors that share one pass over the planes
LARGEST_BITS = 16


@inline
def sides_of(vectors, rows, planes, shifts, count, dim, sides):
    """sides[row, j] = plane_j . vector + shift_j, for float32 vectors [rows, D], planes [J, D]."""
    for j in range(0, count, 4):
        places = four_from(j, count)
        p0, p1, p2, p3 = places[0] * dim, places[1] * dim, places[2] * dim, places[3] * dim
        fours = rows // 4 * 4
        for row in range(0, fours, 4):
            first = row * dim
            dots = dots_4x4(
                planes, p0, p1, p2, p3,
                vectors, first, first + dim, first + 2 * dim, first + 3 * dim, dim,
            )  # fmt: skip
            for i in range(min(4, count - j)):
                of_plane = (dots[0], dots[1], dots[2], dots[3])[i]
                for r in range(4):
                    sides[(row + r) * count + j + i] = of_plane[r] + shifts[j + i]
        for row in range(fours, rows):
            dots = dots_1x4(planes, p0, p1, p2, p3, row_of(vectors, row, dim), dim)
            for i in range(min(4, count - j)):
                sides[row * count + j + i] = dots[i] + shifts[j + i]


@inline
def code_of(sides, table, bits):
    code = 0
    for n in range(bits):
        code |= int(sides[table * bits + n] > 0) << n
    return code


@kernel("(float32[:,::1], float32[:,:,::1], float32[::1], int32[:,::1])")
def simhash_codes(vectors, planes, shifts, codes):
    """Fill codes [B, L]: the bucket of each vector [B, D] in each table of planes [L, N, D].

    `shifts` [J] are added to the products.
    """
    rows, dim = vectors.shape
    tables, bits = planes.shape[:2]
    count = tables * bits
    sides = np.empty(AT_ONCE * count, np.float32)
    for first in range(0, rows, AT_ONCE):
        block = min(AT_ONCE, rows - first)
        start = row_of(pointer(vectors), first, dim)
        sides_of(start, block, pointer(planes), pointer(shifts), count, dim, pointer(sides))
        for row in range(block):
            for table in range(tables):
                sides_of_row = shift(pointer(sides), row * count)
                codes[first + row, table] = code_of(sides_of_row, table, bits)
    keep_alive(sides)


def probe_order(bits: int, probes: int) -> Int32:
    """Return int32 [probes]: sets of planes to flip, by rank (bit r: the r-th nearest), best first.

    Lv et al. 2007, Multi-Probe LSH, section 4.5: in the order of the sum of squared distances, each
    distance replaced by its expectation. The first is no flip; all 2^bits sets are each bucket
    once.
    """
    ranks = np.arange(1, bits + 1) / (bits + 1)
    distances = np.array([NormalDist().inv_cdf((1 + rank) / 2) for rank in ranks])
    sets = np.arange(1 << bits, dtype=np.int32)
    costs = np.zeros(len(sets))
    for n in range(bits):
        costs += (sets >> n & 1) * distances[n] ** 2
    return sets[np.argsort(costs, kind="stable")[:probes]]
