"""log Z and log-probabilities as float32, so that what is proven of the float64 still holds.

Bounds are rounded outward, log-probabilities down: none is above 0, and those of one row add up to
1 at most (docs/exactness.md). log_z [B, 4] is TOP, VALUE, LOW and HIGH of log_z.py, with infinite
bounds where nothing is proven.

Shape letters: B batch rows, M ids of a row, G groups of hypotheses, K pairs of a group.
"""

from __future__ import annotations

from math import exp, log1p

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.topk.merge import HIGH, LOW, RANK_ROUNDING, TOP, VALUE

ROUNDED = 2.0**-50  # bounds a few roundings to float64, relative to the magnitudes added
SUMMED = 2.0**-51  # of a sum of exponentials, for each of them
LARGEST = float(np.finfo(np.float32).max)
PRINTED_VALUE, PRINTED_LOW, PRINTED_HIGH = range(3)


@kernel("(float64[:,::1], float64, float32[:,::1])")
def print_log_z(log_z, scale, printed):
    """Fill printed [3, B]: an estimate of log Z, and what it is proven to lie between."""
    for row in range(log_z.shape[0]):
        base, value = scale * log_z[row, TOP], log_z[row, VALUE]
        low, high = base + log_z[row, LOW], base + log_z[row, HIGH]
        printed_low = _down(low - ROUNDED * (abs(base) + abs(low)))
        printed_high = -_down(-high - ROUNDED * (abs(base) + abs(high)))
        value = np.float32(base + value)
        printed[PRINTED_VALUE, row] = min(max(value, printed_low), printed_high)
        printed[PRINTED_LOW, row], printed[PRINTED_HIGH, row] = printed_low, printed_high


@kernel("(float64[:,::1], int32[:,::1], float64[:,::1], float64, float32[:,::1], boolean[::1])")
def print_log_probs(logits, ids, log_z, scale, log_probs, exact):
    """Fill log_probs [B, M] of ids with those logits [B, M], and exact [B].

    A row is exact if each of its log-probabilities is proven to less than half of a float32's last
    place: rounded down, it is the correctly rounded one, or the float32 below it.
    """
    rows, count = ids.shape
    for row in range(rows):
        top, low, high = log_z[row, TOP], log_z[row, LOW], log_z[row, HIGH]
        exact[row] = high - low < 1.0
        for i in range(count):
            apart = (logits[row, i] - top) * scale
            if apart > -np.inf and exact[row]:
                off = ROUNDED * (abs(apart) + high)
                least, most = apart - high - off, apart - low + off
                exact[row] = most - least < 0.5 * _place(most)
                log_probs[row, i] = _down(min(least, 0.0))
        if not exact[row]:
            _raise(logits[row], ids[row], log_z[row], scale)
        value = log_z[row, VALUE]
        for i in range(count):
            apart = (logits[row, i] - top) * scale
            if not apart > -np.inf:
                log_probs[row, i] = -np.inf
            elif not exact[row]:
                off = ROUNDED * (abs(apart) + abs(value))
                log_probs[row, i] = _down(min(apart - value - off, 0.0))


@kernel("(float64[:,::1], int32[:,::1], float64[:,::1], float64)")
def raise_log_z(logits, ids, log_z, scale):
    """Raise VALUE to the log Z of the row's different `ids` [B, M] where it is below that.

    An estimate may be, and then probabilities would add up to more than 1.
    """
    for row in range(ids.shape[0]):
        _raise(logits[row], ids[row], log_z[row], scale)


@kernel(
    "(int32[:,::1], int32[:,::1], int32[:,::1], float64[:,::1], float64[:,::1], float64[::1],"
    " float64[::1], boolean[::1], int32[::1], int32[:,::1], float32[:,::1], float32[:,::1],"
    " boolean[:,::1])"
)
def print_pairs(
    parents, places, ids, logits, log_z, scores, divisors, finished, eos_ids,
    tokens, printed, ranks, ended,
):  # fmt: skip
    """Fill tokens, scores (`printed`), ranks and `ended` [G, K] of the pairs that were chosen.

    Row r of ids and logits [B, M] is hypothesis r; pair p of a group is the one at places[g, p] of
    its row parents[g, p], -1 for none. A score is not above the true one, and ranks do not rise.
    """
    groups, most = parents.shape
    beams = scores.size // groups
    for group in range(groups):
        least = np.inf
        for pair in range(most):
            if parents[group, pair] < 0:
                tokens[group, pair], ended[group, pair] = -1, False
                printed[group, pair] = ranks[group, pair] = -np.inf
                continue
            row, place = group * beams + parents[group, pair], places[group, pair]
            token, rest = ids[row, place], log_z[row, VALUE]
            apart = logits[row, place] - log_z[row, TOP]
            off = RANK_ROUNDING * (abs(scores[row]) + abs(apart) + abs(rest))
            score = scores[row] + (apart - rest) - (0.0 if finished[row] else off)
            rank = score / divisors[row]
            if not rank >= least:  # also where it is not a number
                least = rank
            tokens[group, pair], ended[group, pair] = token, finished[row]
            for eos in eos_ids:
                ended[group, pair] |= token == eos
            printed[group, pair], ranks[group, pair] = _within(score), _within(least)


@inline
def _within(value):
    """`value` rounded down, but within float32's range."""
    if value > LARGEST:
        value = LARGEST
    elif value < -LARGEST:
        value = -LARGEST
    return _down(value)


@inline
def _raise(logits, ids, log_z, scale):
    order = np.argsort(ids)
    best = np.max(logits)
    if best == -np.inf:
        return
    total, before, apart = 0.0, -1, False
    for i in order:
        if ids[i] != before:
            if logits[i] == best and not apart:
                apart = True  # its 1 is that of log(1 + S)
            else:
                total += exp((logits[i] - best) * scale)
            before = ids[i]
    rest = log1p(total + SUMMED * ids.size * total)
    least = (best - log_z[TOP]) * scale + rest
    if log_z[VALUE] < least:
        log_z[VALUE] = least + ROUNDED * abs(least)


@inline
def _down(value):
    """The largest float32 that is not above `value`."""
    nearest = np.float32(value)
    return np.nextafter(nearest, np.float32(-np.inf)) if nearest > value else nearest


@inline
def _place(value):
    """The distance of a float32's magnitude to the next larger one; beyond float32, infinite."""
    magnitude = np.float32(abs(value))
    if magnitude == np.inf:
        return np.inf
    return float(np.nextafter(magnitude, np.float32(np.inf))) - float(magnitude)
