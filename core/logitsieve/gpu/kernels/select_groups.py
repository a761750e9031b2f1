"""The groups of ids that may hold a draw's largest noisy logit, or much of all weight.

From logits: with q = a x + b G (gumbel.py) the float32 q is within a slack + b NOISE_ERROR of the
exact one and what a few float32 operations round off: less than 2^-22 |q| + 2^-16 b. The draw's id
is in a group whose maximum is within twice that of the largest. Slot 0 lists the groups of the
largest logit, and of ids that weigh more than e^-LIGHT of all: they are summed in float64 for
log Z, the others are taken from float32 sums. Where float32 logits say too little for that, groups
are listed down to e^-DEEP.

From bounds: the ids of the group with the largest noisy bound are computed. The noisy logit of the
draw's id is not below the best of theirs, q, and its noisy bound, u being a bound but for the
MARGIN of encode_query.py, is not below q - a MARGIN - b NOISE_ERROR but for what a few float32
operations round off: less than 2^-22 of it and 2^-16 b. So it is in a group that is listed. Slot 0
finds the largest logit that way. It lists, too, what weighs more than e^-HEAVY of all by its bound,
so that log Z is closer: at most e^HEAVY ids.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws, C
groups that are listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import norm_of
from logitsieve.gpu.kernels.encode_query import FACTORS, MARGIN
from logitsieve.gpu.kernels.exact_logits import exact_logits
from logitsieve.gpu.kernels.gumbel import NOISE_ERROR, draw_of, factors, noise64
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED, WANTED, admissible
from logitsieve.gpu.kernels.topk import kth_floor, ordered32, unordered32

# What proofs/gpu.py proves to be enough.
NOISY_SPARE = tl.constexpr(2.0**-16)  # of b, for rounding a x + b G
ERROR_SPARE, TWICE_SPARE = tl.constexpr(1.001), tl.constexpr(2.001)  # of errors
BEST_SPARE = tl.constexpr(2.0**-20)  # of the largest

LIGHT = tl.constexpr(7.0)  # nats: under a thousandth
DEEP = tl.constexpr(30.0)  # nats: what is lighter is nothing to log Z, whatever float32 is off by
LOOSE = tl.constexpr(0.5)  # nats of slack from which on light ids are not left to float32


@triton.jit
def select_groups_kernel(
    maxima, sums, hidden, limits, scale, listed, counts, overfull, cuts, status, D, G,
    C: tl.constexpr, GROUPS: tl.constexpr, FALLBACK: tl.constexpr,
):  # fmt: skip
    """listed [B, N + 1, C], counts and overfull [B, N + 1], cuts and status [B]; programs are them.

    `overfull` slots have too many to list, and are left to draws.py. cuts [B]: what the maxima of
    slot 0's groups reach. FALLBACK: for rows that were PASSED_ON, and stay so.
    """
    row, slot, passed = tl.program_id(0).to(tl.int64), tl.program_id(1), True
    flat = row * tl.num_programs(1) + slot
    if FALLBACK:
        passed = tl.load(status + row) == PASSED_ON
    if passed:
        norm, place = norm_of(hidden + row * D, D), tl.arange(0, GROUPS)
        fits = admissible(norm, limits)
        slack, factor = norm * tl.load(limits + 2) + tl.load(limits + 3), tl.load(scale)
        values = tl.load(maxima + flat * G + place, mask=place < G, other=float("-inf"))
        best, loose = tl.max(values, 0), slack * factor > LOOSE
        error = slack
        if slot > 0:
            a, b = factors(factor)
            error = slack * a + b * (NOISE_ERROR + NOISY_SPARE)
        sure = best - (error * TWICE_SPARE).to(tl.float32) - tl.abs(best) * BEST_SPARE
        cut, short = sure, sure
        if slot == 0:
            weights = tl.load(sums + row * G + place, mask=place < G, other=0.0)
            light = _light_logit(values, weights, best, slack, factor, tl.where(loose, DEEP, LIGHT))
            cut = tl.minimum(sure, light)
            short = tl.where(loose, cut, sure)
            many = tl.sum((values >= cut).to(tl.int32), 0) > C
            floor = unordered32(kth_floor(ordered32(values), (place < G) & many, C // 2))
            cut = tl.where(many, tl.maximum(cut, floor), cut)
        chosen = (values >= cut) & (place < G)
        count = tl.sum(chosen.to(tl.int32), 0)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(listed + flat * C + slots, place, mask=chosen & (slots < C))
        over = (count > C) | (cut > short)
        tl.store(counts + flat, tl.where(fits & (count <= C), count, 0))
        tl.store(overfull + flat, tl.where(fits & over, 1, 0))
        if slot == 0:
            tl.store(cuts + row, cut)
            if not FALLBACK:
                tl.store(status + row, tl.where(fits, WANTED, REFUSED))
    else:
        tl.store(counts + flat, 0)
        tl.store(overfull + flat, 0)


@triton.jit
def _light_logit(values, weights, best, slack, scale, nats):
    """The logit below which the ids of a group weigh less than e^-nats of all."""
    apart = (values - best) * scale.to(tl.float32)
    total = tl.sum(tl.where(weights > 0.0, weights * tl.exp(apart), 0.0), 0).to(tl.float64)
    return (best + (tl.log(total) - nats) / scale - 2.0 * slack).to(tl.float32)


HEAVY = tl.constexpr(5.5)  # nats
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32: what is below is banned


@triton.jit
def select_groups_by_bound_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step, maxima, sums, terms,
    listed, counts, cuts, status, V, D, G,
    C: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """listed [B, N + 1, C], counts and cuts [B, N + 1], of maxima [B, N + 1, G]; programs are them.

    `terms` [B, FACTORS] are the rows' factors. A row with too much to list is PASSED_ON.
    """
    row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat = row * tl.num_programs(1) + slot
    tl.store(counts + flat, 0)
    if tl.load(status + row) == WANTED:
        place, factor = tl.arange(0, GROUPS), tl.load(scale)
        values = tl.load(maxima + flat * G + place, mask=place < G, other=float("-inf"))
        ids = tl.argmax(values, 0) * GROUP + tl.arange(0, GROUP)
        found = exact_logits(
            weight, bias, hidden, offsets, edited, instead, row, ids, ids < V, D, EDITS
        )
        error = tl.load(terms + row * FACTORS + MARGIN)
        if slot > 0:
            noise = noise64(tl.load(seeds + row), tl.load(step), draw_of(step, slot - 1), ids)
            found = found * tl.minimum(factor, 1.0) + noise * tl.minimum(1.0 / factor, 1.0)
            a, b = factors(factor)
            error = error * a + b * (NOISE_ERROR + NOISY_SPARE)
        best = tl.max(found, 0)
        cut = (best - error * ERROR_SPARE - tl.abs(best) * BEST_SPARE).to(tl.float32)
        if slot == 0:
            light = _light_bound(values, sums + row * 3 * G + place, place < G, factor)
            cut = tl.minimum(cut, light)
        cut = tl.maximum(cut, LOWEST)
        chosen = values >= cut
        count = tl.sum(chosen.to(tl.int32), 0)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(listed + flat * C + slots, place, mask=chosen & (slots < C))
        tl.store(counts + flat, tl.where(count > C, 0, count))
        tl.store(cuts + flat, cut)
        if count > C:
            tl.store(status + row, PASSED_ON)


@triton.jit
def _light_bound(values, sums, inside, scale):
    """The bound below which an id weighs less than e^-HEAVY of all by their bounds."""
    best, weights = tl.max(values, 0), tl.load(sums, mask=inside, other=0.0)
    apart = (values - best) * scale.to(tl.float32)
    total = tl.sum(tl.where(weights > 0.0, weights * tl.exp(apart), 0.0), 0).to(tl.float64)
    return (best + (tl.log(total) - HEAVY) / scale).to(tl.float32)
