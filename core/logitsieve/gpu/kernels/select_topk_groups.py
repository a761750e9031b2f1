"""The groups of ids that may hold one of a row's k best, and which rows can be answered at all.

A float32 logit is within `slack` of the exact one. With t a number that k maxima reach, the k-th
best exact logit is at least t - slack, so a group whose maximum is below t - 2 slack holds none of
the best. t need not be the k-th maximum itself: any that k to 2 k of them reach will do, and is
found by halving an interval.

Shape letters: B rows of hidden, D hidden size, G groups, C groups that are listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.check_finite import admissible
from logitsieve.gpu.kernels.rows import norm_of, ordered32, reached, unordered32
from logitsieve.gpu.kernels.status import DENSE, PASSED_ON, REFUSED, WANTED


@triton.jit
def select_kernel(
    maxima, hidden, limits, listed, counts, status, D, G, k,
    C: tl.constexpr, GROUPS: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """listed [B, C] and counts [B] of maxima [B, G]; status [B] REFUSED, DENSE or WANTED.

    `limits`: max ||w||, max |b| and the slack of a row of norm 1, beside that of a row of norm 0.
    GROUPS is a power of two, G or more. AGAIN: as a fallback, for rows that were PASSED_ON.
    """
    row, passed = tl.program_id(0).to(tl.int64), True
    if AGAIN:
        passed = tl.load(status + row) == PASSED_ON
    if passed:
        norm = norm_of(hidden + row * D, D)
        fits = admissible(norm, limits)
        slack = (norm * tl.load(limits + 2) + tl.load(limits + 3)).to(tl.float32) * 1.0001
        place = tl.arange(0, GROUPS)
        values = tl.load(maxima + row * G + place, mask=place < G, other=float("-inf"))
        reach = unordered32(kth_floor(ordered32(values), place < G, k))
        cut = reach - 2.0 * slack - 2.4e-7 * tl.abs(reach)  # and what this line itself rounds
        chosen = (values >= cut) & (place < G)
        count = tl.sum(chosen.to(tl.int32), 0)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(listed + row * C + slots, place, mask=chosen & (slots < C))
        crowded = count > C
        tl.store(counts + row, tl.where(crowded, 0, tl.where(fits, count, 0)))
        tl.store(status + row, tl.where(fits, tl.where(crowded, DENSE, WANTED), REFUSED))
    else:
        tl.store(counts + row, 0)


@triton.jit
def kth_floor(keys, inside, k):
    """An integer that at least k of the keys reach, and at most 2 k where that can be."""
    return reached(keys, inside, k, 2 * k)[0]


@triton.jit
def kth_largest(keys, inside, k):
    """The k-th largest key."""
    return reached(keys, inside, k, 0)[0]
