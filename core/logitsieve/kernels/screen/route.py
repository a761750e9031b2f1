"""Routing: the clusters whose centroids have the largest dots with a query, chosen by int8.

Shape letters: C clusters, G groups of 16 clusters, D hidden size, P probes.

A centroid is v = s q + r with int8 codes q and scale s, a query h = g z + t likewise. Then
|v.h - s g q.z| = |r.h + s q.t| <= e ||h|| + (n + e) tau, where e >= ||r|| and n >= ||v|| over all
rows, and tau >= ||t||. Centroids whose int8 dot reaches the P-th best exact one less that bound are
evaluated by `dot64`, and no other can be among the P best: the route is the exact one.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.byte_lanes import (
    add_sums,
    multiply_bytes,
    scale_sums,
    store_bytes,
    zero_sums,
)
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import (
    LANES,
    larger,
    largest_lane,
    load,
    load_first,
    magnitude,
    multiply_add,
    pair_sum,
    rounded,
    splat32,
    splat64,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.planes import LARGEST, SMALLEST
from logitsieve.kernels.simd.pointers import as_int8, shift
from logitsieve.kernels.topk.queries import NORM, SLACK, STATE
from logitsieve.kernels.topk.scan import UNLISTED, decide_above

LARGEST_DIM = 1 << 16  # beyond it 255 * 127 * D overflows an int32 sum


def encode_centroids(centroids: Float32) -> tuple[np.ndarray, Float32, float]:
    """Codes uint8 [G, D/4, 16, 4] (q + 128), scales float32 [16 G] and e of centroids [C, D].

    D is padded to whole lanes. The last group is filled up with copies of the first centroid,
    which change no maximum.
    """
    clusters, dim = centroids.shape
    groups, quads = -(-clusters // LANES), -(-dim // LANES) * LANES // 4
    rows = centroids[np.arange(groups * LANES) * (np.arange(groups * LANES) < clusters)]
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    steps = np.where(scales > 0, scales, 1).astype(np.float64)[:, None]
    codes = np.zeros((groups * LANES, quads * 4))
    codes[:, :dim] = np.clip(np.rint(rows / steps), -127, 127)
    rest = rows - codes[:, :dim] * scales[:, None].astype(np.float64)
    error = float(np.linalg.norm(rest, axis=1).max()) * (1 + 1e-12)
    grouped = (codes + 128).astype(np.uint8).reshape(groups, LANES, quads, 4)
    return np.ascontiguousarray(grouped.transpose(0, 2, 1, 3)), scales, error


@inline
def encode_query(h, dim, codes):
    """Write int8 codes z of one row of hidden; its scale g, sum of codes and ||t||.

    The scale is 0 where the row is too small or too large to be encoded.
    """
    whole, rest = dim - dim % LANES, dim % LANES
    largest = zeros32()
    for d in range(0, whole, LANES):
        largest = larger(largest, magnitude(load(h, d)))
    if rest:
        largest = larger(largest, magnitude(load_first(h, whole, rest)))
    most = largest_lane(largest)
    if not SMALLEST < most < LARGEST:
        return np.float32(0), 0, 0.0
    scale = most / np.float32(127)
    factor, step = splat32(np.float32(126.99999) / most), splat64(-float(scale))
    squares, total, ones = zeros64(), zeros32(), splat32(np.float32(1))
    for d in range(0, padded(dim), LANES):
        x = load(h, d) if d < whole else load_first(h, whole, rest)
        z = rounded(multiply_add(x, factor, zeros32()))
        t = multiply_add(widen(z), step, widen(x))
        squares = multiply_add(t, t, squares)
        total = multiply_add(z, ones, total)
        store_bytes(codes, d, z)
    return scale, int(pair_sum(total)), np.sqrt(pair_sum(squares))


@inline
def _dots(rows, query, quads):
    """Dots of sixteen rows of codes with a query's; four chains hide the latency of each."""
    a, b, c, e = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for quad in range(0, quads, 4):
        a = multiply_bytes(a, rows, query, quad)
        b = multiply_bytes(b, rows, query, quad + 1)
        c = multiply_bytes(c, rows, query, quad + 2)
        e = multiply_bytes(e, rows, query, quad + 3)
    return add_sums(add_sums(a, b), add_sums(c, e))


@inline
def route(clusters, routes, q):
    """Fill the heap of query q with its best centroids; False if its row cannot be encoded.

    `routes.logits` has room for 16 G float32 values and D bytes.
    """
    matrix, error, largest = clusters.matrix, clusters.error, clusters.largest
    dim, groups = matrix.dim, (matrix.rows + LANES - 1) // LANES
    quads = padded(dim) // 4
    query_codes = as_int8(shift(routes.logits, groups * LANES))
    scale, total, rest = encode_query(row_of(routes.hidden, q, dim), dim, query_codes)
    if scale == 0:
        return False
    state = shift(routes.states, STATE * q)
    norm = state[NORM]
    slack = error * norm + (largest + error) * (rest + 2.0**-20 * (norm + rest))
    underflow = dim * 2.0**-132  # a product of scales may be off by 2^-150, an int8 dot is < 2^15 D
    state[SLACK] = 1.000001 * slack + underflow
    for group in range(groups):
        rows = shift(clusters.codes, group * quads * 4 * LANES)
        sums = _dots(rows, query_codes, quads)
        factors = multiply_add(load(clusters.scales, group * LANES), splat32(scale), zeros32())
        store(routes.logits, group * LANES, scale_sums(sums, 128 * total, factors))
    first = np.int64(0)
    decide_above(matrix, UNLISTED, routes.kept, first, matrix.rows, routes.logits, routes, q)
    return True
