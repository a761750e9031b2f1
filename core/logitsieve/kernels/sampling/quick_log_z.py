"""A proven interval of log Z, and the best rows, from one pass of float32 dots.

Heavy rows, which may weigh more than e^-NEAR of the sum so far, are computed by `dot64`; light rows
are float32 dots, within `slack`.

The error of a light row's exponent is scale * slack, and the rounding of the logit, of the scale
and of the difference to the largest: ROUNDED (|largest| + 90), as exponents end at -87. An
exponential adds ROUGH. Results do not depend on how rows are stored.
"""

from math import exp, expm1, log

import numpy as np

from logitsieve.kernels.compile import inline, inline_once, kernel
from logitsieve.kernels.simd.dots import four_of, pad_lanes, padded, row_of
from logitsieve.kernels.simd.exponential import sum_of_exponentials
from logitsieve.kernels.simd.lanes import LANES, largest_of, load
from logitsieve.kernels.simd.masks import lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_float32, int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.allowed import allowed_of, forbid
from logitsieve.kernels.topk.descriptor import (
    ROWS,
    as_floats,
    by_values,
    exact_logit,
    matrix_at,
    share_of_rows,
    shared_rows,
    slack_at,
    tile_size,
)
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE
from logitsieve.kernels.topk.queries import CHUNK, NORM, at_once, begin_block, query_size, write64
from logitsieve.kernels.topk.queries import SLACK as QUERY_SLACK
from logitsieve.kernels.topk.queries import STATE as QUERY_STATE
from logitsieve.kernels.topk.scan import ALONE_CHUNK, UNLISTED, decide_above, decodes, fill

# A sum's state. Relative to e^MOST, HEAVY and LIGHT are the weights of heavy and light rows, ERROR
# bounds the error of LIGHT. A chunk below FLOOR has no heavy row. GROWTH is e^x - 1 for the error x
# of an exponent. NEXT is the next edit. Logits are scaled.
MOST, HEAVY, LIGHT, ERROR, CLOSE, SLACK, FLOOR, GROWTH, NEXT = range(9)
STATE = 9
NEAR = 7.0  # nats
PLAIN = 1024.0  # if |log of the sum| is larger, every chunk is searched for heavy rows
LOOSE, LOOSE_CODED = 2.0**-5, 0.5  # nats: with more slack, all rows use dot64
ROUGH = 2.0**-22  # of a float32 exponential, and of its exponent near 87
ROUNDED = 2.0**-22  # of a float32 logit, twice rounded, of the scale, and of the largest one
# Relative errors of a float64 sum: of exponentials, and of each row's addition and rescaling.
SUMMED, STEP = 2.0**-42, 2.0**-50
TINY = 2.0**-125  # of e^MOST for each row: smaller exponentials count as e^-87
LOG_SPARE, LOG_REACH = 2.0**-50, 50.0  # a logarithm's error: LOG_SPARE (|MOST| + LOG_REACH)


@kernel(
    "(int64, float32[:,::1], float64, boolean, int64[::1], int32[::1], float64[::1], int32[:,::1],"
    " float64[:,::1], float64[:,::1], int64, int64)"
)
def quick_log_z(
    address, hidden, scale, coded, offsets, edited, values, ids, logits, log_z, start, stop
):  # fmt: skip
    """Fill log_z [B, 4] with a TOP of 0, an estimate of log Z, and bounds, of one share of W.

    In log Z `values` [E] replace the logits of `edited` ids. `ids` and `logits` [B, K] get the K
    best ids with exact logits before edits. If `coded`, codes of light rows are multiplied with a
    query's: in half the time, for a wider interval.
    """
    descriptor = int64_pointer(address)
    begin, end = share_of_rows(descriptor)
    limit, dim = ids.shape[1], hidden.shape[1]
    each = query_size(dim, limit) + STATE + CHUNK // 2
    block, bad = at_once(stop - start, each), -1
    scratch = np.empty(block * each + ALONE_CHUNK // 2, np.float64)
    sums = shift(pointer(scratch), block * query_size(dim, limit))
    chunk_logits = as_float32(shift(sums, block * STATE))
    for first in range(start, stop, block):
        count = min(block, stop - first)
        queries, bad = begin_block(
            descriptor, pointer(scratch), block, pointer(hidden), pointer(ids), first, count, limit,
            False,
        )  # fmt: skip
        if bad >= 0:
            break
        for q in range(count):
            state = shift(queries.states, QUERY_STATE * q)
            if not coded:
                state[QUERY_SLACK] = slack_at(descriptor, 0, state[NORM])
            sum_, row = row_of(sums, q, STATE), first + q
            _begin(sum_, scale * state[QUERY_SLACK], LOOSE_CODED if coded else LOOSE)
            sum_[NEXT] = offsets[row]
            for i in range(offsets[row], offsets[row + 1]):
                if begin <= edited[i] < end:
                    _add_exact(sum_, scale * values[i])
                sum_[NEXT] += edited[i] < begin
        ends, edits = shift(pointer(offsets), first + 1), pointer(edited)
        matrix = matrix_at(descriptor, 0)
        matrix = matrix if coded else by_values(matrix)
        _scan(matrix, queries, scale, edits, ends, sums, chunk_logits, count, begin, end)
        for q in range(count):
            write64(queries, q, row_of(pointer(logits), first + q, limit))
            fields = row_of(pointer(log_z), first + q, FIELDS)
            _write(row_of(sums, q, STATE), descriptor[ROWS], fields)
    keep_alive((scratch, offsets, edited))
    return bad


@inline
def _begin(sum_, slack, loose):
    sum_[MOST], sum_[HEAVY], sum_[LIGHT], sum_[ERROR] = -np.inf, 0.0, 0.0, 0.0
    sum_[SLACK] = min(slack, loose)  # with more, no row is light
    sum_[CLOSE] = NEAR + 2.0 * slack if slack < loose else np.inf
    sum_[FLOOR], sum_[GROWTH] = -np.inf, 0.0


@inline_once
def _scan(matrix, queries, scale, edited, ends, sums, logits, count, begin, end):
    decoding, tile = decodes(matrix, count), shared_rows(matrix)
    decoded = np.empty(tile_size(matrix) if decoding else 0, np.float32)
    chunk = ALONE_CHUNK if count == 1 else CHUNK
    if count <= 4:
        tile = chunk
    for first in range(begin, end, chunk):
        last = min(first + chunk, end)
        for start in range(first, last, tile):
            stop = min(start + tile, last)
            floats = as_floats(matrix, start, stop, pointer(decoded)) if decoding else matrix
            for q in range(0, count, 4):
                q0, q1, q2, q3, few = four_of(q, count)
                fill(
                    floats, UNLISTED, queries.kept, start, stop, queries, q0, q1, q2, q3, few,
                    shift(logits, q * CHUNK + start - first),
                )  # fmt: skip
        for q in range(count):
            chunk_logits = row_of(logits, q, CHUNK)
            size, own = pad_lanes(chunk_logits, last - first), allowed_of(queries.allowed, q)
            forbid(own, first, size, chunk_logits)
            if queries.limit > 0:
                decide_above(
                    matrix, UNLISTED, queries.kept, first, last - first, chunk_logits, queries, q
                )
            wide, sum_ = row_of(queries.wide, q, padded(matrix.dim)), row_of(sums, q, STATE)
            while sum_[NEXT] < ends[q] and edited[int(sum_[NEXT])] < last:
                chunk_logits[edited[int(sum_[NEXT])] - first] = -np.inf
                sum_[NEXT] += 1.0
            for part in range(first, last, CHUNK):
                part_logits, stop = shift(chunk_logits, part - first), min(part + CHUNK, last)
                _add(matrix, wide, scale, sum_, part_logits, part, stop)
    keep_alive(decoded)


@inline
def _add(matrix, wide, scale, sum_, logits, first, last):
    count = last - first
    largest = scale * float(largest_of(logits, count))
    if not largest < sum_[FLOOR]:
        _add_heavy(matrix, wide, scale, sum_, logits, first, count, largest)
        largest = scale * float(largest_of(logits, count))
    _move(sum_, largest)
    if sum_[MOST] == -np.inf:
        return
    light = sum_of_exponentials(logits, count, np.float32(scale), np.float32(sum_[MOST]))
    if light > count * TINY:
        sum_[LIGHT] += light
        sum_[ERROR] += light * sum_[GROWTH]


@inline
def _add_heavy(matrix, wide, scale, sum_, logits, first, count, largest):
    total = sum_[HEAVY] + sum_[LIGHT]
    so_far = sum_[MOST] + log(total) if total > 0 else -np.inf
    near = max(so_far, largest)
    # All rows are heavy if float32 rounds logits of this size too much.
    least = (near - sum_[CLOSE]) / scale if ROUNDED * abs(near) < LOOSE else -np.inf
    threshold = np.float32(least)
    for i in range(0, count, LANES):
        mask = lanes_not_below(load(logits, i), threshold)
        while mask != 0:
            place = i + lowest_bit(mask)
            mask &= mask - 1
            if place < count and logits[place] > -np.inf:
                _add_exact(sum_, scale * exact_logit(matrix, wide, first + place))
                logits[place] = -np.inf
    # The sum only grows; a nat covers all rounding here.
    sum_[FLOOR] = so_far - sum_[CLOSE] - 1.0 if abs(so_far) < PLAIN else -np.inf


@inline
def _add_exact(sum_, logit):
    if logit > -np.inf:
        _move(sum_, logit)
        sum_[HEAVY] += exp(logit - sum_[MOST])


@inline
def _move(sum_, logit):
    """Make the sums relative to `logit`, or to a float32 near it if light rows may follow."""
    if logit > sum_[MOST]:
        most = float(np.float32(logit)) if ROUNDED * abs(logit) < LOOSE else logit
        factor = exp(sum_[MOST] - most)
        sum_[HEAVY], sum_[LIGHT] = sum_[HEAVY] * factor, sum_[LIGHT] * factor
        sum_[ERROR], sum_[MOST] = sum_[ERROR] * factor, most
        sum_[GROWTH] = expm1(sum_[SLACK] + ROUNDED * (abs(most) + 90.0) + ROUGH)


@inline
def _write(sum_, rows, log_z):
    total = sum_[HEAVY] + sum_[LIGHT]
    off = sum_[ERROR] + total * (SUMMED + STEP * rows) + rows * TINY
    rounded = LOG_SPARE * (abs(sum_[MOST]) + LOG_REACH) if sum_[MOST] > -np.inf else 0.0
    low = sum_[MOST] + log(total - off) if total > off else -np.inf
    high = sum_[MOST] + log(total + off)
    log_z[TOP], log_z[LOW], log_z[HIGH] = 0.0, low - rounded, high + rounded
    log_z[VALUE] = min(max(sum_[MOST] + log(total), log_z[LOW]), log_z[HIGH])
