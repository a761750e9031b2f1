"""The groups of ids that may hold a draw's winner, the largest logit, or much of all weight.

With q = a x + b G (perturb.py) the float32 q is within a slack + b NOISE_ERROR of the exact one and
what a few float32 operations round off: less than 2^-22 |q| + 2^-16 b. The winner is in a group
whose maximum is within twice that of the largest.

Slot 0 lists the groups of the largest logit, and of ids that weigh more than e^-LIGHT of all: they
are summed in float64 for log Z, the others are taken from float32 sums. Where float32 logits say
too little for that, groups are listed down to e^-DEEP.

Shape letters: B rows of hidden, D hidden size, G groups, N draws, C groups that are listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.check_finite import admissible
from logitsieve.gpu.kernels.noise import NOISE_ERROR
from logitsieve.gpu.kernels.rows import norm_of, ordered32, unordered32
from logitsieve.gpu.kernels.scan_gumbel import factors
from logitsieve.gpu.kernels.select_topk_groups import kth_floor
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED, WANTED

LIGHT = tl.constexpr(7.0)  # nats: under a thousandth
DEEP = tl.constexpr(30.0)  # nats: what is lighter is nothing to log Z, whatever float32 is off by
LOOSE = tl.constexpr(0.5)  # nats of slack from which on light ids are not left to float32


@triton.jit
def near_kernel(
    maxima, sums, hidden, limits, scale, listed, counts, crowded, cuts, status, D, G,
    C: tl.constexpr, GROUPS: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """listed [B, N + 1, C], counts and crowded [B, N + 1], cuts and status [B]; programs are them.

    `crowded` slots have too many to list, and are left to crowded.py. cuts [B]: what the maxima of
    slot 0's groups reach. AGAIN: as a fallback, for rows that were PASSED_ON, and stay so.
    """
    row, slot, passed = tl.program_id(0).to(tl.int64), tl.program_id(1), True
    flat = row * tl.num_programs(1) + slot
    if AGAIN:
        passed = tl.load(status + row) == PASSED_ON
    if passed:
        _list_near(
            maxima, sums, hidden, limits, scale, listed, counts, crowded, cuts, status,
            row, slot, flat, D, G, C, GROUPS, AGAIN,
        )  # fmt: skip
    else:
        tl.store(counts + flat, 0)
        tl.store(crowded + flat, 0)


@triton.jit
def _list_near(
    maxima, sums, hidden, limits, scale, listed, counts, crowded, cuts, status,
    row, slot, flat, D, G,
    C: tl.constexpr, GROUPS: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    norm, place = norm_of(hidden + row * D, D), tl.arange(0, GROUPS)
    fits = admissible(norm, limits)
    slack, factor = norm * tl.load(limits + 2) + tl.load(limits + 3), tl.load(scale)
    values = tl.load(maxima + flat * G + place, mask=place < G, other=float("-inf"))
    best, loose = tl.max(values, 0), slack * factor > LOOSE
    error = slack
    if slot > 0:
        a, b = factors(factor)
        error = slack * a + (NOISE_ERROR + 2.0**-16) * b
    sure = best - (2.001 * error).to(tl.float32) - 2.0**-20 * tl.abs(best)
    cut, short = sure, sure
    if slot == 0:
        weights = tl.load(sums + row * G + place, mask=place < G, other=0.0)
        light = _light(values, weights, best, slack, factor, tl.where(loose, DEEP, LIGHT))
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
    tl.store(crowded + flat, tl.where(fits & over, 1, 0))
    if slot == 0:
        tl.store(cuts + row, cut)
        if not AGAIN:
            tl.store(status + row, tl.where(fits, WANTED, REFUSED))


@triton.jit
def _light(values, weights, best, slack, scale, nats):
    """The logit below which the ids of a group weigh less than e^-nats of all."""
    apart = (values - best) * scale.to(tl.float32)
    total = tl.sum(tl.where(weights > 0.0, weights * tl.exp(apart), 0.0), 0).to(tl.float64)
    return (best + (tl.log(total) - nats) / scale - 2.0 * slack).to(tl.float32)
