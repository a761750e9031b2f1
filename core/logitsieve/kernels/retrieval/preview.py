"""Approximate logits (scores) from few rotated dimensions, and the rows that score best.

Sixteen rows are stored column by column, so no sum runs across lanes. The best rows are kept as
int64 keys, with the score above and the complement of the id below; when the buffer is full, the
worst are dropped.

Shape letters: R rank, W width (W <= R), N rows selected.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import dots_1x4, four_from, row_of
from logitsieve.kernels.simd.lanes import (
    LANES,
    add_outer,
    load,
    load_first,
    multiply_add,
    splat32,
    store,
)
from logitsieve.kernels.simd.masks import first_lanes, lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_int32, keep_alive, pointer, shift
from logitsieve.kernels.topk.queries import at_once

SCORES_AT_ONCE = 4 * LANES
SHARED_BYTES = 32 * 1024  # of columns, which queries share in the L1 cache
MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 without its sign

# Pointers to columns float32 [G, R, 16] and bias [V].
Preview = namedtuple("Preview", "columns bias rows rank width")
# Pointers to keys int64 [Q, capacity], and to the number and threshold of a query's keys.
BestKeys = namedtuple("BestKeys", "keys sizes thresholds count capacity")


@inline
def keep_largest(keys, size, count):
    """Bring the `count` largest of `size` distinct keys to the front (quickselect)."""
    low, high, border = 0, size, 0
    while border != count:
        a, b, c = keys[low], keys[(low + high) // 2], keys[high - 1]
        # The median of three, or the larger of two: both sides shrink.
        pivot = max(min(a, b), min(max(a, b), c)) if high - low > 2 else max(a, c)
        border = low
        for i in range(low, high):
            key = keys[i]
            keys[i], keys[border] = keys[border], key
            border += key >= pivot
        if border < count:
            low = border
        else:
            high = border


@inline
def _ordered(bits):
    """Map the bits of a float32 to an integer in the same order, or back."""
    return bits ^ ((bits >> 31) & MAGNITUDE)


@inline
def _collect(best, q, scores, first, rows):
    mask = first_lanes(lanes_not_below(load(scores, 0), best.thresholds[q]), rows - first)
    size, bits = best.sizes[q], as_int32(scores)
    keys = shift(best.keys, q * best.capacity)
    while mask:
        lane = lowest_bit(mask)
        mask &= mask - 1
        keys[size] = (_ordered(np.int64(bits[lane])) << 32) | (rows - 1 - first - lane)
        size += 1
    if size > best.capacity - LANES:
        keep_largest(keys, size, best.count)
        size, worst = best.count, keys[0]
        for i in range(1, size):
            worst = min(worst, keys[i])
        as_int32(best.thresholds)[q] = np.int32(_ordered(worst >> 32))
    best.sizes[q] = size


@inline
def _biases(preview, group):
    first = group * LANES
    if preview.rows - first >= LANES:
        return load(preview.bias, first)
    return load_first(preview.bias, first, preview.rows - first)


@inline
def _score_one(preview, groups, turned, scores):
    columns, stride = preview.columns, preview.rank * LANES
    i, j, k, m = groups[0] * stride, groups[1] * stride, groups[2] * stride, groups[3] * stride
    s0, s1 = _biases(preview, groups[0]), _biases(preview, groups[1])
    s2, s3 = _biases(preview, groups[2]), _biases(preview, groups[3])
    for r in range(preview.width):
        x, place = splat32(turned[r]), r * LANES
        s0 = multiply_add(load(columns, i + place), x, s0)
        s1 = multiply_add(load(columns, j + place), x, s1)
        s2 = multiply_add(load(columns, k + place), x, s2)
        s3 = multiply_add(load(columns, m + place), x, s3)
    store(scores, 0, s0)
    store(scores, LANES, s1)
    store(scores, 2 * LANES, s2)
    store(scores, 3 * LANES, s3)


@inline
def _store_four(scores, lanes):
    store(scores, 0, lanes[0])
    store(scores, 4 * LANES, lanes[1])
    store(scores, 8 * LANES, lanes[2])
    store(scores, 12 * LANES, lanes[3])


@inline
def _score_four(preview, groups, turned, scores):
    columns, stride, width = preview.columns, preview.rank * LANES, preview.width
    i, j, k, m = groups[0] * stride, groups[1] * stride, groups[2] * stride, groups[3] * stride
    s0, s1 = _biases(preview, groups[0]), _biases(preview, groups[1])
    s2, s3 = _biases(preview, groups[2]), _biases(preview, groups[3])
    t0, t1, t2, t3 = (s0, s0, s0, s0), (s1, s1, s1, s1), (s2, s2, s2, s2), (s3, s3, s3, s3)
    for r in range(width):
        xs = (
            splat32(turned[r]), splat32(turned[width + r]), splat32(turned[2 * width + r]),
            splat32(turned[3 * width + r]),
        )  # fmt: skip
        place = r * LANES
        t0 = add_outer((load(columns, i + place),), xs, t0)
        t1 = add_outer((load(columns, j + place),), xs, t1)
        t2 = add_outer((load(columns, k + place),), xs, t2)
        t3 = add_outer((load(columns, m + place),), xs, t3)
    _store_four(scores, t0)
    _store_four(shift(scores, LANES), t1)
    _store_four(shift(scores, 2 * LANES), t2)
    _store_four(shift(scores, 3 * LANES), t3)


@inline
def _collect_groups(preview, best, q, scores, group, last):
    for i in range(min(4, last - group)):
        _collect(best, q, shift(scores, i * LANES), (group + i) * LANES, preview.rows)


@inline
def _turn(basis, hidden, width, dim, turned):
    step = (width + 3) // 4
    for r in range(step):
        r0, r1, r2, r3 = four_from(r, width, step)
        dots = dots_1x4(basis, r0 * dim, r1 * dim, r2 * dim, r3 * dim, hidden, dim)
        turned[r0], turned[r1], turned[r2], turned[r3] = dots[0], dots[1], dots[2], dots[3]


@inline
def _scan(preview, best, turned, scores, count):
    groups, width = (preview.rows + LANES - 1) // LANES, preview.width
    shared = max(4, SHARED_BYTES // (4 * LANES * width) // 4 * 4)
    tile = groups if count < 8 else shared
    fours = count // 4 * 4
    for first in range(0, groups, tile):
        last = min(groups, first + tile)
        for q in range(0, fours, 4):
            for group in range(first, last, 4):
                four = four_from(group, last)
                _score_four(preview, four, row_of(turned, q, width), scores)
                for i in range(4):
                    query_scores = shift(scores, 4 * LANES * i)
                    _collect_groups(preview, best, q + i, query_scores, group, last)
        for q in range(fours, count):
            for group in range(first, last, 4):
                four = four_from(group, last)
                _score_one(preview, four, row_of(turned, q, width), scores)
                _collect_groups(preview, best, q, scores, group, last)


@kernel("(float32[:,::1], float32[:,::1], float32[:,:,::1], float32[::1], int64, int32[:,::1])")
def preview_select(hidden, basis, columns, bias, width, selected):
    """Fill selected [B, N] with the rows that score best for each row of hidden [B, D], N <= V.

    Scores are columns [G, :width, 16] . (basis [:width, D] . hidden) + bias [V].
    """
    rows, dim = hidden.shape
    count, vocab_size = selected.shape[1], bias.size
    capacity = min(2 * count, vocab_size) + 2 * LANES
    block = at_once(rows, width + capacity)
    turned, scores = np.empty(block * width, np.float32), np.empty(16 * LANES, np.float32)
    keys, sizes = np.empty(block * capacity, np.int64), np.empty(block, np.int64)
    thresholds = np.empty(block, np.float32)
    preview = Preview(pointer(columns), pointer(bias), vocab_size, columns.shape[1], width)
    best = BestKeys(pointer(keys), pointer(sizes), pointer(thresholds), count, capacity)
    for first in range(0, rows, block):
        queries = min(block, rows - first)
        for q in range(queries):
            query = row_of(pointer(hidden), first + q, dim)
            _turn(pointer(basis), query, width, dim, row_of(pointer(turned), q, width))
            sizes[q], thresholds[q] = 0, -np.inf
        _scan(preview, best, pointer(turned), pointer(scores), queries)
        for q in range(queries):
            own_keys = shift(best.keys, q * capacity)
            if sizes[q] > count:
                keep_largest(own_keys, sizes[q], count)
            for i in range(count):
                selected[first + q, i] = vocab_size - 1 - (own_keys[i] & 0xFFFFFFFF)
    keep_alive((turned, scores, keys, sizes, thresholds))


@kernel("(float32[:,::1], float32[:,::1], float32[:,:,::1], float32[::1], int64, float32[:,::1])")
def preview_scores(hidden, basis, columns, bias, width, scores):
    """Fill scores [B, V up to a multiple of SCORES_AT_ONCE]."""
    (rows, dim), turned = hidden.shape, np.empty(width, np.float32)
    preview = Preview(pointer(columns), pointer(bias), bias.size, columns.shape[1], width)
    groups = (bias.size + LANES - 1) // LANES
    for row in range(rows):
        own = row_of(pointer(scores), row, scores.shape[1])
        _turn(pointer(basis), row_of(pointer(hidden), row, dim), width, dim, pointer(turned))
        for group in range(0, groups, 4):
            _score_one(
                preview, four_from(group, groups), pointer(turned), shift(own, group * LANES)
            )
    keep_alive((turned, scores))
