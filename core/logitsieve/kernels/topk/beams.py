"""The best pairs of hypothesis and token of each group of a beam search.

Every hypothesis brings its tokens best first, so that a group's pairs are merged from the fronts of
its lists. log Z may be known as an interval only: the merge then says whether it would have gone
another way for other values within.

Shape letters: B rows (hypotheses), G groups, N tokens a hypothesis, K pairs a group.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Bool, Float64, Int32, Int64
from logitsieve.kernels.compile import inline, kernel

VALUE, LOW, HIGH = range(3)  # rows of log_z


@inline
def _rank(score, value, log_z, divisor):
    """Rises with `value` and falls with `log_z`, as rounded: so bounds of log Z bound it."""
    return (score + (value - log_z)) / divisor


@kernel(
    "(float64[::1], float64[::1], float64[:,::1], int64[::1], float64[:,::1],"
    " int32[:,::1], int32[:,::1], boolean[::1])"
)
def best_pairs(
    scores: Float64,
    divisors: Float64,
    logits: Float64,
    counts: Int64,
    log_z: Float64,
    parents: Int32,
    places: Int32,
    doubtful: Bool,
) -> None:
    """Fill parents [G, K], places [G, K] within a parent's list, and doubtful [G].

    Row r has score scores[r] and counts[r] tokens of falling logits[r] [B, N]. Pairs are ordered by
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
