"""Merges of lists: a head's answer with the edited ids, and the hypotheses of a beam search.

Shape letters: B batch rows (hypotheses), K answers (pairs of a group), G groups, N tokens a
hypothesis.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import keep_alive, pointer
from logitsieve.kernels.topk.heap import offer, sort_best_first

VALUE, LOW, HIGH = range(3)  # rows of log_z


@kernel(
    "(int64[::1], int32[::1], float64[::1], int64[::1], int32[::1], float64[::1],"
    " int64[::1], int32[:,::1], float64[:,::1])"
)
def merge_edited(
    offsets, ids, sums, edited_offsets, edited_ids, edited_sums, wanted, best_ids, best_sums
):
    """Fill the wanted[r] best of each row, and -1 with -inf beyond, in best_ids [B, K].

    A row has no id twice. Edited ones of -inf do not count; there must be as many others as wanted.
    """
    rows, width = best_ids.shape
    for row in range(rows):
        kept_ids = row_of(pointer(best_ids), row, width)
        kept = row_of(pointer(best_sums), row, width)
        limit, size = wanted[row], 0
        if limit > 0:
            for i in range(offsets[row], offsets[row + 1]):
                size = offer(kept, kept_ids, size, limit, sums[i], ids[i])
            for i in range(edited_offsets[row], edited_offsets[row + 1]):
                if edited_sums[i] > -np.inf:
                    size = offer(kept, kept_ids, size, limit, edited_sums[i], edited_ids[i])
            sort_best_first(kept, kept_ids, size)
        for i in range(size, width):
            kept[i], kept_ids[i] = -np.inf, -1
    keep_alive(best_ids)
    keep_alive(best_sums)


@inline
def _rank(score, value, log_z, divisor):
    """Rises with `value` and falls with `log_z`, as rounded: so bounds of log Z bound it."""
    return (score + (value - log_z)) / divisor


@kernel(
    "(float64[::1], float64[::1], float64[:,::1], int64[::1], float64[:,::1],"
    " int32[:,::1], int32[:,::1], boolean[::1])"
)
def best_pairs(scores, divisors, logits, counts, log_z, parents, places, doubtful):
    """Fill parents [G, K], places [G, K] within a parent's list, and doubtful [G].

    Row r has score scores[r] and counts[r] tokens of falling logits[r] [B, N], so that a group's
    pairs are merged from the fronts of its rows' lists. Pairs are ordered by
    (score + logit - log Z) / divisors[r], equal ones by parent, then by place; where a group has
    too few, -1 and 0. log_z [3, B] holds values and their bounds; a group is doubtful if bounds
    leave open which pairs are chosen, or their order.
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
                    value = logits[row, place]
                    rank = _rank(scores[row], value, log_z[VALUE, row], divisors[row])
                    if chosen < 0 or rank > best:
                        chosen, best = beam, rank
            parents[group, pair], places[group, pair] = chosen, 0
            if chosen < 0:
                continue
            row, place = start + chosen, fronts[chosen]
            least = _rank(scores[row], logits[row, place], log_z[HIGH, row], divisors[row])
            for beam in range(beams):
                other, front = start + beam, fronts[beam]
                if beam != chosen and front < counts[other]:
                    value = logits[other, front]
                    most_of = _rank(scores[other], value, log_z[LOW, other], divisors[other])
                    doubt |= most_of > least or (most_of == least and beam < chosen)
            places[group, pair] = place
            fronts[chosen] += 1
        doubtful[group] = doubt
