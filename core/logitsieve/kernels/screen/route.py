"""Routing: find the centroids with the largest dots with a query, by int8 products.

A centroid is v = s q + r with int8 codes q and a scale s, a query h = g z + t. Then |v.h - s g q.z|
= |r.h + s q.t| <= e ||h|| + (n + e) ||t||, with e >= ||r|| and n >= ||v|| for all centroids. Only
centroids within this slack of the P-th best are evaluated by `dot64` (rounding: proofs/route.py).
"""

from collections import namedtuple
from collections.abc import Mapping

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.byte_lanes import (
    OFFSET,
    WORDS,
    multiply_bytes,
    scale_sums,
    store_bytes,
    store_words,
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
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.planes import LARGEST, SMALLEST
from logitsieve.kernels.simd.pointers import (
    as_int8,
    float32_pointer,
    float64_pointer,
    shift,
    uint8_pointer,
)
from logitsieve.kernels.topk.descriptor import (
    LARGEST_LOGIT,
    LARGEST_NORM,
    MATRIX_FIELDS,
    ROWS,
    fill_fields,
    matrix_at,
    matrix_descriptor,
    number_at,
)
from logitsieve.kernels.topk.queries import NORM, SLACK, STATE, empty_heaps
from logitsieve.kernels.topk.scan import UNLISTED, decide_above, scan_all, scan_one

CENTROIDS = MATRIX_FIELDS  # their descriptor follows W's
# OFFSETS int32 [C+2] and IDS int32 are the lists; list C is empty. CODES (0: none), SCALES and
# ERROR are of `encode_centroids`. A row gets list C if its dot with its best centroid is below
# ESCALATE times its norm and NORMS float64 [C], norms of centroids times `reaches` (0: no row
# does). The OUTSIDE matrix, if any, has a row for each cluster: its dot with a context estimates
# the log of the sum of e^logit outside the list, with standard deviations SPREADS float32 [C].
# MOST_ERROR limits the error of log Z.
(
    OFFSETS, IDS, PROBES, CODES, SCALES, ERROR, ESCALATE, NORMS, SPREADS, MOST_ERROR,
) = range(2 * MATRIX_FIELDS, 2 * MATRIX_FIELDS + 10)  # fmt: skip
OUTSIDE = 2 * MATRIX_FIELDS + 10
SCREEN_FIELDS = OUTSIDE + MATRIX_FIELDS

# Proven to be enough by proofs/route.py.
LARGEST_DIM = 1 << 16  # for a larger D, 255 * 127 * D overflows an int32 sum
NO_LARGER = 126.99999  # over the largest coordinate: no code of a query is above 127
ERROR_SPARE = 1.0 + 1e-9  # covers rounding of a coding error's norm
SLACK_SPARE = 1.000001  # covers rounding of a slack
ROUTE_ROUNDING = 2.0**-20  # rounding of int8 dots and `dot64`, relative to the largest dot
ROUTE_UNDERFLOW = 2.0**-132  # for each coordinate

Centroids = namedtuple("Centroids", "matrix codes scales error largest")


def screen_descriptor(
    softmax_descriptor: Int64,
    arrays: Mapping[str, np.ndarray],
    probes: int,
    escalate: float,
    most_error: float = np.inf,
) -> tuple[Int64, list[np.ndarray]]:
    """Return the descriptor of a screen over a softmax, and the arrays that it points to.

    The arrays are those of the part of `ScreenHead`; `reaches` and `outside_*` are optional.
    """
    centroids, offsets = arrays["centroids"], arrays["offsets"]
    bias = np.zeros(len(centroids), np.float32)
    fields: dict[int, np.ndarray | float] = {
        OFFSETS: np.append(offsets, offsets[-1]),
        IDS: arrays["ids"],
        PROBES: probes,
    }
    if centroids.shape[1] <= LARGEST_DIM:
        fields[CODES], fields[SCALES], fields[ERROR] = encode_centroids(centroids)
    if escalate > -1:
        norms = np.linalg.norm(centroids.astype(np.float64), axis=1)
        fields[NORMS], fields[ESCALATE] = norms * arrays.get("reaches", 1.0), float(escalate)
    descriptor = np.zeros(SCREEN_FIELDS, np.int64)
    descriptor[:CENTROIDS] = softmax_descriptor
    descriptor[CENTROIDS : 2 * MATRIX_FIELDS] = matrix_descriptor(centroids, bias)
    held = [centroids, bias]
    if "outside_rows" in arrays:
        outside = arrays["outside_rows"], arrays["outside_biases"]
        descriptor[OUTSIDE:] = matrix_descriptor(*outside)
        fields |= {SPREADS: arrays["outside_spreads"], MOST_ERROR: float(most_error)}
        held += outside
    held += (value for value in fields.values() if isinstance(value, np.ndarray))
    return fill_fields(descriptor, fields), held


def encode_centroids(centroids: Float32) -> tuple[np.ndarray, Float32, float]:
    """Return codes uint8 [G, D/4, 16, 4] (q + 128), scales float32 [16 G] and e.

    Copies of the first centroid pad the last group.
    """
    clusters, dim = centroids.shape
    groups, quads = -(-clusters // LANES), -(-dim // LANES) * LANES // 4
    rows = centroids[np.arange(groups * LANES) * (np.arange(groups * LANES) < clusters)]
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    steps = np.where(scales > 0, scales, 1).astype(np.float64)[:, None]
    codes = np.zeros((groups * LANES, quads * 4))
    codes[:, :dim] = np.clip(np.rint(rows / steps), -127, 127)
    rest = rows - codes[:, :dim] * scales[:, None].astype(np.float64)
    error = float(np.linalg.norm(rest, axis=1).max()) * ERROR_SPARE
    grouped = (codes + 128).astype(np.uint8).reshape(groups, LANES, quads, 4)
    return np.ascontiguousarray(grouped.transpose(0, 2, 1, 3)), scales, error


@inline
def encode_row(h, dim, codes, second):
    """Write codes z of a row of hidden to two planes; return g, the sum of codes and ||t||.

    g is 0 if the row is too small or too large.
    """
    end, rest = dim - dim % LANES, dim % LANES
    largest = zeros32()
    for d in range(0, end, LANES):
        largest = larger(largest, magnitude(load(h, d)))
    if rest:
        largest = larger(largest, magnitude(load_first(h, end, rest)))
    most = largest_lane(largest)
    if not SMALLEST < most < LARGEST:
        return np.float32(0), 0, 0.0
    scale = most / np.float32(127)
    factor, squares, total = np.float32(NO_LARGER) / most, zeros64(), zeros32()
    for d in range(0, padded(dim), LANES):
        x = load(h, d) if d < end else load_first(h, end, rest)
        z = rounded(x * factor)
        t = multiply_add(widen(z), -float(scale), widen(x))
        squares = multiply_add(t, t, squares)
        total += z
        if WORDS:
            store_words(codes, second, d, z)
        else:
            store_bytes(codes, d, z)
    return scale, int(pair_sum(total)), np.sqrt(pair_sum(squares))


@inline
def _dots(rows, query, second, quads):
    s0, s1, s2, s3 = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for quad in range(0, quads, 4):
        s0 = multiply_bytes(s0, rows, query, second, quad)
        s1 = multiply_bytes(s1, rows, query, second, quad + 1)
        s2 = multiply_bytes(s2, rows, query, second, quad + 2)
        s3 = multiply_bytes(s3, rows, query, second, quad + 3)
    return (s0 + s1) + (s2 + s3)


@inline
def _route_one(centroids, routes, q):
    """Fill the heap of query q with its best centroids; False if int8 cannot hold its dots."""
    matrix, error, largest = centroids.matrix, centroids.error, centroids.largest
    dim, groups = matrix.dim, (matrix.rows + LANES - 1) // LANES
    quads = padded(dim) // 4
    query_codes = as_int8(shift(routes.logits, groups * LANES))
    second = shift(query_codes, padded(dim))
    scale, total, rest = encode_row(row_of(routes.hidden, q, dim), dim, query_codes, second)
    state = shift(routes.states, STATE * q)
    norm = state[NORM]
    largest_dot = (largest + error) * (norm + rest)
    if scale == 0 or not largest_dot <= LARGEST_LOGIT:
        return False
    slack = error * norm + (largest + error) * rest + ROUTE_ROUNDING * largest_dot
    state[SLACK] = SLACK_SPARE * slack + dim * ROUTE_UNDERFLOW
    for group in range(groups):
        rows = shift(centroids.codes, group * quads * 4 * LANES)
        sums = _dots(rows, query_codes, second, quads)
        factors = load(centroids.scales, group * LANES) * scale
        store(routes.logits, group * LANES, scale_sums(sums, OFFSET * total, factors))
    first = np.int64(0)
    decide_above(matrix, UNLISTED, routes.kept, first, matrix.rows, routes.logits, routes, q)
    return True


@inline
def route_queries(descriptor, routes, count):
    centroids = Centroids(
        matrix_at(descriptor, CENTROIDS), uint8_pointer(descriptor[CODES]),
        float32_pointer(descriptor[SCALES]), number_at(descriptor, ERROR),
        number_at(descriptor, CENTROIDS + LARGEST_NORM),
    )  # fmt: skip
    empty_heaps(descriptor, CENTROIDS, routes, count)
    if descriptor[CODES] == 0:
        scan_all(centroids.matrix, routes, count, np.int64(0), centroids.matrix.rows)
    else:
        for q in range(count):
            if not _route_one(centroids, routes, q):
                first, last = np.int64(0), centroids.matrix.rows
                scan_one(centroids.matrix, False, routes.kept, first, last, routes, q)
    if descriptor[NORMS] != 0:
        _escalate(descriptor, routes, count)


@inline
def best_place(routes, q):
    best = q * routes.limit
    for place in range(best + 1, (q + 1) * routes.limit):
        if routes.values[place] > routes.values[best]:
            best = place
    return best


@inline_once
def _escalate(descriptor, routes, count):
    norms, least = float64_pointer(descriptor[NORMS]), number_at(descriptor, ESCALATE)
    for q in range(count):
        first, best = q * routes.limit, best_place(routes, q)
        length = routes.states[STATE * q + NORM] * norms[routes.kept[best]]
        if routes.values[best] < least * length:
            for place in range(first, first + routes.limit):
                routes.kept[place] = descriptor[CENTROIDS + ROWS]
