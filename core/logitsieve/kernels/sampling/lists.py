"""Lists of the best logits: the cut by top-p and min-p, and draws by the largest x_i / T + G_i.

A draw from all ids begins with the best (Mussmann, Levy, Ermon 2017, Fast Amortized Inference).
With M the largest value among them, another id needs noise above M less the last one's x / T. The
few such ids are found by their noise, as in gumbel.py, so the draw equals the one from all logits.
"""

from math import exp, log, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.gumbel import (
    BLOCK,
    SPARE,
    list_candidates,
    may_be_within,
    noise_of,
)
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.allowed import allowed_at, is_allowed
from logitsieve.kernels.topk.descriptor import exact_logit, matrix_at, widen_hidden
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE
from logitsieve.kernels.topk.scan import prefetch_beginnings

CLOSE = 1e-9  # above the relative rounding differences of two summations
AHEAD = 8  # rows to prefetch
SURE = 12  # standard errors: no measured estimate was off by as many
OPEN = -1  # in place of an id


@kernel("(int64[::1], float64[::1], float64, float64, float64, int64[::1])")
def cut_lists(offsets, logits, inverse, top_p, min_p, lengths):
    """Fill lengths [B] of the prefixes that top-p and min-p leave, by weights e^{x inverse}."""
    for row in range(lengths.size):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        most, total, mass, length = logits[first] * inverse, 0.0, 0.0, 0
        for i in range(count):
            total += exp(logits[first + i] * inverse - most)
        while length < count and (top_p == 1.0 or mass < top_p * total):
            weight = exp(logits[first + length] * inverse - most)
            if weight < min_p:
                break
            mass += weight
            length += 1
        lengths[row] = length


@kernel("(int64[::1], float64[::1], float64, float64, float64, float64[:,::1], int64[::1])")
def cut_best(offsets, logits, inverse, top_p, min_p, log_z, lengths):
    """Like `cut_lists`, with lists of the best of all ids.

    log_z [B, 4] is of all ids; its bounds may be infinite. A length is -1 - n if only n ids surely
    remain: the whole list, or the ids before one that is too close to an edge.
    """
    for row in range(lengths.size):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        relative = (log_z[row, TOP] - logits[first]) * inverse
        least, most = exp(relative + log_z[row, LOW]), exp(relative + log_z[row, HIGH])
        listed, mass, length = 0.0, 0.0, 0
        for i in range(count):
            listed += exp((logits[first + i] - logits[first]) * inverse)
        least = max(least, listed)
        while length < count:
            weight = exp((logits[first + length] - logits[first]) * inverse)
            ends = top_p < 1.0 and mass * (1.0 - CLOSE) >= top_p * most
            if ends or weight < min_p * (1.0 - CLOSE):
                break
            may_end = top_p < 1.0 and mass * (1.0 + CLOSE) >= top_p * least
            if may_end or weight < min_p * (1.0 + CLOSE):
                count = length
                break
            mass += weight
            length += 1
        lengths[row] = length if length < count else -1 - length


@kernel("(float64[:,::1], float64[::1], float64, float64, float64[:,::1], float64[::1])")
def fit_nucleus(logits, floors, inverse, top_p, log_z, errors):
    """Change estimates of log Z of all ids, and their standard errors [B], to the nuclei's.

    logits [B, K] are the best; only some below floors [B] are missing. A nucleus that ends among
    them is summed. Any other weighs top_p of all, or more by up to its last id.
    """
    for row in range(errors.size):
        total, before, mass, weight, place = log_z[row, VALUE], 0.0, 0.0, 1.0, 0
        while place < logits.shape[1] and mass < top_p and logits[row, place] >= floors[row]:
            weight, before = exp(logits[row, place] * inverse - total), mass
            mass += weight
            place += 1
        ends = mass >= top_p
        if not ends:
            before, mass = top_p, top_p + weight / 2
        spare = min(mass - top_p, top_p - before)
        if spare <= SURE * errors[row] * top_p:
            errors[row] = sqrt(errors[row] ** 2 + (weight / mass) ** 2)  # it may end one id off
        log_z[row, VALUE] += log(mass)


@kernel("(int64[::1], int32[::1], float64[::1], uint64[::1], uint64, float64, int64, int32[:,::1])")
def list_sample(offsets, rows, logits, seeds, step, inverse, first_id, places):
    """Fill places [B, N] within lists of rows of W, drawn like `gumbel_sample`.

    Logits are finite; each list begins with its largest.
    """
    longest = 0
    for row in range(places.shape[0]):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = np.empty(2 * longest, np.float64)
    scaled = pointer(scratch)
    weights = shift(scaled, longest)
    for row in range(places.shape[0]):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        for i in range(count):
            scaled[i] = (logits[first + i] - logits[first]) * inverse
            weights[i] = exp(scaled[i])
        listed = shift(pointer(rows), first)
        for draw in range(places.shape[1]):
            places[row, draw] = _winner(
                listed, scaled, weights, count, first_id, seeds[row], step, np.uint64(draw)
            )[0]
    keep_alive((scratch, rows))


@inline
def _winner(rows, scaled, weights, count, first_id, seed, step, draw):
    """Return the place of the largest scaled logit plus noise, ties by row, and that value."""
    place, most = 0, scaled[0] + noise_of(seed, step, draw, first_id + rows[0])
    limit = SPARE * exp(-most)
    for i in range(1, count):
        if may_be_within(weights[i] * limit, seed, step, draw, first_id + rows[i]):
            value = scaled[i] + noise_of(seed, step, draw, first_id + rows[i])
            if value > most or (value == most and rows[i] < rows[place]):
                place, most = i, value
                limit = SPARE * exp(-most)
    return place, most


@kernel(
    "(int64, float32[:,::1], int32[:,::1], float64[:,::1], float64[::1], uint64[::1], uint64,"
    " float64, float64, float64, int64, int64[::1], int32[::1], float64[::1], float64[:,::1],"
    " int32[:,::1], int32[::1], int64, int64)"
)
def best_sample(
    address, hidden, best, logits, floors, seeds, step, inverse, top_p, min_p, first_id, offsets,
    edited, values, log_z, ids, scanned, start, stop,
):  # fmt: skip
    """Fill ids [B, N] like `gumbel_sample`, and scanned [B], which counts logits computed.

    `best` [B, K] are the best ids after edits, then -1, with exact `logits`; some below floors [B]
    may be missing. log_z [B, 4] is of all ids; LOW may be -inf. A draw that top-p or min-p may
    exclude becomes OPEN.
    """
    descriptor = int64_pointer(address)
    matrix, dim, most = matrix_at(descriptor, 0), hidden.shape[1], best.shape[1]
    size = padded(matrix.rows)
    scratch = np.empty(padded(dim) + 2 * most, np.float64)
    wide, scaled = pointer(scratch), shift(pointer(scratch), padded(dim))
    weights = shift(scaled, most)
    equal, most_blocks, bad = np.ones(LANES, np.float32), padded(size // BLOCK), -1
    blocks = np.empty(most_blocks + LANES, np.int32)
    rows = np.empty(most_blocks * BLOCK + LANES, np.int32)
    for row in range(start, stop):
        if widen_hidden(descriptor, row_of(pointer(hidden), row, dim), wide) < 0:
            bad = row
            break
        edits = edited, values, offsets[row], offsets[row + 1]
        own = allowed_at(descriptor, row)
        listed, seed = shift(pointer(best), row * most), seeds[row]
        known = shift(pointer(logits), row * most)
        largest = known[0]
        count, left, scanned[row], complete = 0, 0, 0, 0
        floor = (floors[row] - largest) * inverse
        while count < most and listed[count] >= 0:
            scaled[count] = (known[count] - largest) * inverse
            weights[count] = exp(scaled[count])
            left += weights[count] >= min_p * (1.0 - CLOSE)
            complete += scaled[count] >= floor
            count += 1
        floor = max(floor, scaled[count - 1])
        least = exp((log_z[row, TOP] - largest) * inverse + log_z[row, LOW])
        for draw in range(ids.shape[1]):
            key = np.uint64(draw)
            place, value = _winner(listed, scaled, weights, left, first_id, seed, step, key)
            winner, weight = np.int64(listed[place]), weights[place]
            others = list_candidates(
                pointer(equal), pointer(equal), 0, size, first_id, value - floor, seed, step,
                key, pointer(blocks), pointer(rows),
            )  # fmt: skip
            for i in range(-AHEAD, others):
                if i + AHEAD < others:
                    prefetch_beginnings(matrix, pointer(rows), i + AHEAD, i + AHEAD + 1)
                other = np.int64(rows[i]) if i >= 0 else matrix.rows
                if other >= matrix.rows or not is_allowed(own, other):
                    continue
                logit = edited_logit(edits, other)
                if logit != logit:
                    logit = exact_logit(matrix, wide, other)
                    scanned[row] += 1
                relative = (logit - largest) * inverse
                if min_p > 0.0 and exp(relative) < min_p * (1.0 - CLOSE):
                    continue
                noisy = relative + noise_of(seed, step, key, first_id + other)
                if noisy > value or (noisy == value and other < winner):
                    place, winner, weight, value = count, other, exp(relative), noisy
            open_ = weight < min_p * (1.0 + CLOSE) and min_p > 0.0
            if top_p < 1.0:
                open_ = open_ or not _surely_in(weights, place, count, complete, top_p, least)
            ids[row, draw] = OPEN if open_ else winner
    keep_alive((scratch, equal, blocks, rows, edited, values, best, logits))
    return bad


@inline
def edited_logit(edits, row):
    """Return the edited logit of a row, or NaN."""
    edited, values, first, last = edits
    end = last
    while first < last:
        middle = (first + last) // 2
        if edited[middle] < row:
            first = middle + 1
        else:
            last = middle
    return values[first] if first < end and edited[first] == row else np.nan


@inline
def _surely_in(weights, place, count, complete, top_p, least):
    """Tell whether a listed id is surely in the nucleus, if all ids weigh `least` or more."""
    total, before = 0.0, 0.0
    for i in range(count):
        total += weights[i]
        before += weights[i] if i < place else 0.0
    return place < complete and before * (1.0 + CLOSE) < top_p * max(total, least)
