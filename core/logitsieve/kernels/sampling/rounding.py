"""Round log Z and log-probabilities to float32 such that proofs in float64 still hold.

Bounds are rounded outward. Log-probabilities are rounded down, so none is above 0 and the
probabilities of a row sum to at most 1 (docs/exactness.md). log_z [B, 4] is as in log_z.py.
"""

from math import exp, log1p

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.topk.merge import HIGH, LOW, RANK_ROUNDING, TOP, VALUE

ROUNDED = 2.0**-50  # bounds a few float64 roundings, relative to the magnitudes added
SUMMED = 2.0**-51  # relative error of a sum of exponentials, for each term
LARGEST = float(np.finfo(np.float32).max)
VALUE32, LOW32, HIGH32 = range(3)


@kernel("(float64[:,::1], float64, float32[:,::1])")
def round_log_z(log_z, scale, rounded):
    for row in range(log_z.shape[0]):
        base, value = scale * log_z[row, TOP], log_z[row, VALUE]
        low, high = base + log_z[row, LOW], base + log_z[row, HIGH]
        low32 = _down(low - ROUNDED * (abs(base) + abs(low)))
        high32 = -_down(-high - ROUNDED * (abs(base) + abs(high)))
        value = np.float32(base + value)
        rounded[VALUE32, row] = min(max(value, low32), high32)
        rounded[LOW32, row], rounded[HIGH32, row] = low32, high32


@kernel("(float64[:,::1], int32[:,::1], float64[:,::1], float64, float32[:,::1], boolean[::1])")
def round_log_probs(logits, ids, log_z, scale, log_probs, exact):
    """Fill log_probs [B, M] of `ids` with these logits [B, M], and exact [B].

    A row is exact if every log-probability is proven to less than half of a float32's last place.
    """
    rows, count = ids.shape
    for row in range(rows):
        top, low, high = log_z[row, TOP], log_z[row, LOW], log_z[row, HIGH]
        exact[row] = high - low < 1.0
        for i in range(count):
            delta = (logits[row, i] - top) * scale
            if delta > -np.inf and exact[row]:
                off = ROUNDED * (abs(delta) + high)
                least, most = delta - high - off, delta - low + off
                exact[row] = most - least < 0.5 * _place(most)
                log_probs[row, i] = _down(min(least, 0.0))
        if not exact[row]:
            _raise(logits[row], ids[row], log_z[row], scale)
        value = log_z[row, VALUE]
        for i in range(count):
            delta = (logits[row, i] - top) * scale
            if not delta > -np.inf:
                log_probs[row, i] = -np.inf
            elif not exact[row]:
                off = ROUNDED * (abs(delta) + abs(value))
                log_probs[row, i] = _down(min(delta - value - off, 0.0))


@kernel("(float64[:,::1], int32[:,::1], float64[:,::1], float64)")
def raise_log_z(logits, ids, log_z, scale):
    """Raise VALUE to at least the log Z of `ids` [B, M], so that probabilities sum to at most 1."""
    for row in range(ids.shape[0]):
        _raise(logits[row], ids[row], log_z[row], scale)


@kernel(
    "(int32[:,::1], int32[:,::1], int32[:,::1], float64[:,::1], float64[:,::1], float64[::1],"
    " float64[::1], boolean[::1], int32[::1], int32[:,::1], float32[:,::1], float32[:,::1],"
    " boolean[:,::1])"
)
def round_pairs(
    parents, places, ids, logits, log_z, scores, divisors, finished, eos_ids,
    tokens, scores32, ranks, ended,
):  # fmt: skip
    """Fill tokens, scores (`scores32`), ranks and `ended` [G, K] of the chosen pairs.

    Pair p of group g is at places[g, p] in the group's row parents[g, p] of ids and logits [B, M];
    a parent of -1 is no pair. Scores are not above the true ones; ranks do not increase.
    """
    groups, most = parents.shape
    beams = scores.size // groups
    for group in range(groups):
        least = np.inf
        for pair in range(most):
            if parents[group, pair] < 0:
                tokens[group, pair], ended[group, pair] = -1, False
                scores32[group, pair] = ranks[group, pair] = -np.inf
                continue
            row, place = group * beams + parents[group, pair], places[group, pair]
            token, rest = ids[row, place], log_z[row, VALUE]
            delta = logits[row, place] - log_z[row, TOP]
            off = RANK_ROUNDING * (abs(scores[row]) + abs(delta) + abs(rest))
            score = scores[row] + (delta - rest) - (0.0 if finished[row] else off)
            rank = score / divisors[row]
            if not rank >= least:  # also if it is NaN
                least = rank
            tokens[group, pair], ended[group, pair] = token, finished[row]
            for eos in eos_ids:
                ended[group, pair] |= token == eos
            scores32[group, pair], ranks[group, pair] = _within(score), _within(least)


@inline
def _within(value):
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
    total, before, excluded = 0.0, -1, False
    for i in order:
        if ids[i] != before:
            if logits[i] == best and not excluded:
                excluded = True  # the 1 of log(1 + S)
            else:
                total += exp((logits[i] - best) * scale)
            before = ids[i]
    rest = log1p(total + SUMMED * ids.size * total)
    least = (best - log_z[TOP]) * scale + rest
    if log_z[VALUE] < least:
        log_z[VALUE] = least + ROUNDED * abs(least)


@inline
def _down(value):
    nearest = np.float32(value)
    return np.nextafter(nearest, np.float32(-np.inf)) if nearest > value else nearest


@inline
def _place(value):
    magnitude = np.float32(abs(value))
    if magnitude == np.inf:
        return np.inf
    return float(np.nextafter(magnitude, np.float32(np.inf))) - float(magnitude)
