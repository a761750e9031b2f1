"""Top k, candidates and bounds by the sieve; `address` is the sketch's descriptor."""

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, inline_once, kernel
from logitsieve.kernels.sampling.floors import Noise, no_noise
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import LANES, store
from logitsieve.kernels.simd.pointers import (
    int64_pointer,
    keep_alive,
    nowhere,
    pointer,
    shift,
    size_of,
)
from logitsieve.kernels.sketch.bounds import bound_group
from logitsieve.kernels.sketch.encode_query import MARGIN, coded_at, encode_query, turn_rows
from logitsieve.kernels.sketch.sieve import (
    DONE,
    FORGET,
    KEEP,
    first_groups,
    sieve,
    sieved_at,
    sieved_of,
    sieving_size,
)
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.sketch.thresholds import SPARE
from logitsieve.kernels.topk.descriptor import (
    DIM,
    ROWS,
    fill_logits,
    matrix_at,
    share_of_rows,
    widen_hidden,
)
from logitsieve.kernels.topk.merge import FIELDS, write_estimate
from logitsieve.kernels.topk.queries import (
    CHUNK,
    FLOOR,
    LOGITS,
    MOST,
    STATE,
    SUMMED,
    SUMS,
    at_once,
    begin_block,
    query_size,
    write64,
    write_answers,
)
from logitsieve.kernels.topk.scan import scan_all

OFF_SHARE = 0.1  # measured: the standard error of log Z over the mean variance of estimates
CODED_OFF = 1e-3  # measured: the error of computed logits that are not among the best
ROUNDED = 1e-6  # rounding of a sum


@inline_once
def _sieve_block(
    descriptor, scratch, block, hidden, ids, first, count, groups, scale, noise, scanned
):  # fmt: skip
    """Answer `count` rows of hidden from `first` on; return (queries, -1 or a refused row).

    Unless `scale` is 0, the sum of all e^{scale x} is estimated.
    """
    limit, dim, (begin, end) = ids.shape[1], hidden.shape[1], share_of_rows(descriptor)
    sieving = shift(scratch, block * query_size(dim, limit) + LOGITS)
    queries, bad = begin_block(
        descriptor, scratch, block, pointer(hidden), pointer(ids), first, count, limit, False
    )
    if bad >= 0:
        return queries, bad
    for q in range(count):
        queries.states[STATE * q + SUMMED] = scale
    if groups == 0:
        scan_all(matrix_at(descriptor, 0), queries, count, begin, end)
    else:
        sieve(descriptor, queries, sieving, groups, count, FORGET, noise)
    for q in range(count):
        done = sieved_of(descriptor, sieving, q, groups, limit, FORGET).counts[DONE]
        scanned[q] = end - begin if groups == 0 else int(done)
    return queries, bad


@inline
def _sizes(descriptor, rows, limit):
    """Return the queries at once, their scratch in float64 values, and `first_groups`."""
    groups, each = first_groups(descriptor, limit), query_size(descriptor[DIM], limit)
    more = size_of(sieved_at(descriptor, nowhere(), groups, limit, FORGET))
    block = at_once(rows, each + more)
    size = sieving_size(descriptor, block, groups, limit, FORGET)
    return block, block * each + LOGITS + size, groups


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def certified_topk(address, hidden, ids, logits, scanned, start, stop):
    descriptor, limit, status = int64_pointer(address), ids.shape[1], 0
    block, size, groups = _sizes(descriptor, stop - start, limit)
    scratch = np.empty(size, np.float64)
    for first in range(start, stop, block):
        count, computed = min(stop - first, block), shift(pointer(scanned), first)
        queries, bad = _sieve_block(
            descriptor, pointer(scratch), block, hidden, ids, first, count, groups, 0.0,
            no_noise(), computed,
        )  # fmt: skip
        if bad >= 0:
            status = -1 - bad
            break
        for q in range(count):
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return status


@kernel(
    "(int64, float32[:,::1], float64, boolean, uint64[::1], uint64, int64, int64, float64, float64,"
    " int32[:,::1], float64[:,::1], float64[:,::1], int32[::1], float64[::1], int64, int64)"
)
def sketch_sums(
    address, hidden, scale, summed, seeds, step, draws, first_id, needed, share, ids, logits, sums,
    scanned, floors, start, stop,
):  # fmt: skip
    """Like `certified_topk` with float64 logits and, if `summed`, sums [B, 3] at a scale.

    `sums` are MOST, TOTAL and VARIANCE of queries.py. Rows below floors [B] may be missing;
    sampling/floors.py explains `needed` and `share`. `first_groups` of K must not be 0.
    """
    descriptor, limit, bad = int64_pointer(address), ids.shape[1], -1
    block, size, groups = _sizes(descriptor, stop - start, limit)
    scratch = np.empty(size, np.float64)
    for first in range(start, stop, block):
        count, computed = min(stop - first, block), shift(pointer(scanned), first)
        noise = Noise(pointer(seeds), first, step, draws, first_id, scale, needed, share)
        queries, bad = _sieve_block(
            descriptor, pointer(scratch), block, hidden, ids, first, count, groups,
            scale if summed else 0.0, noise, computed,
        )  # fmt: skip
        if bad >= 0:
            break
        for q in range(count):
            row, state = first + q, shift(queries.states, STATE * q)
            floors[row] = state[FLOOR]
            for i in range(SUMS):
                sums[row, i] = state[MOST + i]
            write64(queries, q, row_of(pointer(logits), row, limit))
    keep_alive((scratch, seeds))
    return bad


@kernel("(float64[:,:,::1], float64[:,::1], float64, float64[:,::1], float64[::1])")
def estimate_log_z(sums, logits, scale, log_z, errors):
    """Fill log_z [B, 4] and standard errors [B], from `sums` [S, B, 3] of `sketch_sums`.

    logits [B, K] are the best of all shares.
    """
    shares, limit = sums.shape[0], logits.shape[1]
    for row in range(errors.size):
        most, total, variance, best = -np.inf, 0.0, 0.0, 0.0
        for share in range(shares):
            most = max(most, sums[share, row, 0])
        for share in range(shares):
            factor = exp(scale * (sums[share, row, 0] - most))
            total += factor * sums[share, row, 1]
            variance += factor * sums[share, row, 2]
        for i in range(limit):
            best += exp(scale * (logits[row, i] - most))
        others = max(0.0, 1.0 - best / total)
        off = OFF_SHARE * scale * scale * variance / total
        errors[row] = off + others * scale * CODED_OFF + ROUNDED
        write_estimate(row_of(pointer(log_z), row, FIELDS), scale * most + log(total))
    keep_alive(log_z)


@kernel("(int64, float32[:,::1], int64)")
def certified_candidates(address, hidden, least):
    """Return the rows that `certified_topk` computes for `least` answers, and exact logits.

    Returns (-1 or the first refused row, offsets [B+1], ids, logits, upper [B]). No other logit
    exceeds `upper`, the worst of the `least` answers.
    """
    descriptor = int64_pointer(address)
    rows, dim = hidden.shape
    vocabulary, groups = descriptor[ROWS], first_groups(descriptor, least)
    own = query_size(dim, least) + LOGITS
    size = own + sieving_size(descriptor, 1, groups, least, KEEP)
    scratch, best = np.empty(size, np.float64), np.empty(least, np.int32)
    sieving = shift(pointer(scratch), own)
    sieved = sieved_of(descriptor, sieving, 0, groups, least, KEEP)
    offsets, upper = np.empty(rows + 1, np.int64), np.empty(rows, np.float32)
    offsets[0] = 0
    ids, logits = np.empty(rows * CHUNK, np.int32), np.empty(rows * CHUNK, np.float32)
    bad, one = -1, np.int64(1)
    for row in range(rows):
        h = row_of(pointer(hidden), row, dim)
        queries, bad = begin_block(
            descriptor, pointer(scratch), one, h, pointer(best), np.int64(0), one, least, False
        )
        if bad >= 0:
            bad, rows = row, 0
            break
        if groups == 0:
            count, upper[row] = vocabulary, -np.inf
            for i in range(vocabulary):
                sieved.ids[i] = i
        else:
            sieve(descriptor, queries, sieving, groups, one, KEEP, no_noise())
            count, upper[row] = int(sieved.counts[DONE]), _above(queries.values[0], 0.0)
        begin, end = offsets[row], offsets[row] + count
        offsets[row + 1] = end
        if end > ids.size:
            ids, logits = _grown(ids, begin, end), _grown(logits, begin, end)
        for i in range(count):
            ids[begin + i] = sieved.ids[i]
        fill_logits(matrix_at(descriptor, 0), queries.wide, ids, begin, end, logits)
    keep_alive((scratch, best))
    return bad, offsets, ids[: offsets[rows]], logits[: offsets[rows]], upper


@inline
def _grown(array, used, least):
    grown = np.empty(2 * least, array.dtype)
    for i in range(used):
        grown[i] = array[i]
    return grown


@inline
def _above(bound, margin):
    """Return a float32 that no logit with this bound exceeds."""
    return np.float32(bound + margin + SPARE * abs(bound))


@kernel("(int64, float32[:,::1], float32[::1], float32[::1])")
def certified_bounds(address, hidden, lowers, uppers):
    descriptor = int64_pointer(address)
    dim, sketch = hidden.shape[1], sketch_at(descriptor)
    size = padded(dim) + size_of(coded_at(descriptor, nowhere()))
    scratch = np.empty(size, np.float64)
    start = shift(pointer(scratch), padded(dim))
    coded = coded_at(descriptor, start)
    norm, bad = widen_hidden(descriptor, pointer(hidden), pointer(scratch)), 0
    if norm >= 0:
        bad = -1
        turn_rows(descriptor, pointer(hidden), np.int64(1), start, np.int64(0))
        encode_query(descriptor, norm, coded)
        for group in range(sketch.groups):
            bounds = bound_group(sketch, coded, group)
            store(coded.rotated, 0, bounds[0])
            store(coded.rotated, LANES, bounds[1])
            first = group * LANES
            for i in range(min(LANES, sketch.rows - first)):
                estimate, upper = np.float64(coded.rotated[i]), np.float64(coded.rotated[LANES + i])
                lowers[first + i] = -_above(upper - 2.0 * estimate, coded.factors[MARGIN])
                uppers[first + i] = _above(upper, coded.factors[MARGIN])
    keep_alive(scratch)
    return bad
