"""Merges of lists: of shares, of a head's answer with edited ids, of hypotheses of a beam search.

Shape letters: B hypotheses, G groups, K pairs of a group, N tokens a hypothesis.
"""

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import keep_alive, pointer
from logitsieve.kernels.topk.heap import better, contains, offer, sort_best_first

TOP, VALUE, LOW, HIGH = range(4)  # columns of log_z (kernels/sampling/log_z.py)
FIELDS = 4
RANK_ROUNDING = 2.0**-50  # bounds the rounding error of a rank, relative to the magnitudes added


@inline
def write_estimate(fields, log_z):
    fields[TOP], fields[VALUE], fields[LOW], fields[HIGH] = 0.0, log_z, -np.inf, np.inf


@kernel("(int32[:,:,::1], float64[:,:,::1], int32[:,::1], float64[:,::1])")
def merge_shares(found, sums, ids, logits):
    """Fill ids and logits [B, K] with the best of `found` [S, B, K], each id once.

    The ids of a share are in order, best first.
    """
    shares, rows, limit = found.shape
    for row in range(rows):
        own_ids, own_sums = row_of(pointer(ids), row, limit), row_of(pointer(logits), row, limit)
        size = 0
        for share in range(shares):
            for i in range(limit):
                one, value = found[share, row, i], sums[share, row, i]
                if one < 0:
                    break
                if size == limit and not better(value, one, own_sums[0], own_ids[0]):
                    break
                if share == 0 or not contains(own_ids, size, one):
                    size = offer(own_sums, own_ids, size, limit, value, one)
        sort_best_first(own_sums, own_ids, size)
        for i in range(size, limit):
            own_sums[i], own_ids[i] = -np.inf, -1
    keep_alive((ids, logits))


@kernel(
    "(int64[::1], int32[::1], float64[::1], int64[::1], int32[::1], float64[::1],"
    " int64[::1], int32[:,::1], float64[:,::1])"
)
def merge_edited(
    offsets, ids, sums, edited_offsets, edited_ids, edited_sums, counts, best_ids, best_sums
):
    """Fill best_ids and best_sums [B, K]: the counts[r] best of row r, then -1 and -inf."""
    rows, width = best_ids.shape
    for row in range(rows):
        own_ids = row_of(pointer(best_ids), row, width)
        own_sums = row_of(pointer(best_sums), row, width)
        limit, size = counts[row], 0
        if limit > 0:
            for i in range(offsets[row], offsets[row + 1]):
                size = offer(own_sums, own_ids, size, limit, sums[i], ids[i])
            for i in range(edited_offsets[row], edited_offsets[row + 1]):
                if edited_sums[i] > -np.inf:
                    size = offer(own_sums, own_ids, size, limit, edited_sums[i], edited_ids[i])
            sort_best_first(own_sums, own_ids, size)
        for i in range(size, width):
            own_sums[i], own_ids[i] = -np.inf, -1
    keep_alive((best_ids, best_sums))


@inline
def _rank(score, delta, rest, divisor, off):
    """(score + log p) / divisor, plus `off` times a bound of its rounding error."""
    magnitude = abs(score) + abs(delta) + abs(rest)
    if not magnitude < np.inf:
        return -rest  # log Z is unknown
    return (score + (delta - rest) + off * RANK_ROUNDING * magnitude) / divisor


@kernel(
    "(float64[::1], float64[::1], int64[::1], float64[:,::1], int64[::1], float64[:,::1],"
    " int32[:,::1], int32[:,::1], boolean[::1])"
)
def best_pairs(scores, divisors, alike, logits, counts, log_z, parents, places, doubtful):
    """Fill parents [G, K], places [G, K] within a parent's list, and doubtful [G].

    Row r has counts[r] tokens, with logits [B, N] in falling order. Pairs are ordered by (score +
    logit - log Z) / divisors[r], then by parent and place; -1 and 0 follow them. A group is
    doubtful if bounds of log_z [B, 4] leave its pairs or their order open. Rows of a group with
    equal alike[r] have the same log Z.
    """
    groups, most = parents.shape
    beams = scores.size // groups
    fronts = np.empty(beams, np.int64)
    for group in range(groups):
        start, doubt = group * beams, False
        fronts[:] = 0
        for pair in range(most):
            chosen, best = -1, -np.inf
            for beam in range(beams):
                row, place = start + beam, fronts[beam]
                if place < counts[row]:
                    delta = logits[row, place] - log_z[row, TOP]
                    rank = _rank(scores[row], delta, log_z[row, VALUE], divisors[row], 0.0)
                    if chosen < 0 or rank > best:
                        chosen, best = beam, rank
            parents[group, pair], places[group, pair] = chosen, 0
            if chosen < 0:
                continue
            row, place = start + chosen, fronts[chosen]
            value = logits[row, place]
            delta = value - log_z[row, TOP]
            least = _rank(scores[row], delta, log_z[row, HIGH], divisors[row], -1.0)
            for beam in range(beams):
                other, front = start + beam, fronts[beam]
                if beam == chosen or front >= counts[other]:
                    continue
                rival = logits[other, front]
                if alike[row] == alike[other] and divisors[row] == divisors[other]:
                    tied = scores[row] == scores[other] and value == rival and chosen < beam
                    floor = _rank(scores[row], value, 0.0, 1.0, -1.0)
                    doubt |= not (tied or _rank(scores[other], rival, 0.0, 1.0, 1.0) < floor)
                else:
                    delta = rival - log_z[other, TOP]
                    doubt |= not (
                        _rank(scores[other], delta, log_z[other, LOW], divisors[other], 1.0) < least
                    )
            places[group, pair] = place
            fronts[chosen] += 1
        doubtful[group] = doubt
