"""The groups of ids that may hold a draw's largest noisy logit, or much of all weight.

From logits: with q = a x + b G (gumbel.py) a float32 q is within a slack + b NOISE_ERROR of the
exact one and what a few float32 operations round off: less than 2^-22 |q| + 2^-16 b. Some id's
reaches what leaders reach, and some id's its largest logit with the least noise of its group. The
draw's id is in a group whose maximum, a bound, is within twice that error of the larger of the two.
So is its group's largest logit with the id's own noise: the ids that this leaves of listed groups
are computed. One block in 16 has its largest logit in its leader, whatever the logits: no more than
15 others are above the best of these on average, and C others once in e^{C / 16} draws.

Slot 0 lists the groups of the largest logit, and of ids that weigh more than e^-LIGHT of all: they
are summed in float64 for log Z, the others are taken from float32 sums. Where float32 logits say
too little for that, groups are listed down to e^-DEEP.

From bounds: the ids of the groups of the best leader and of the largest bound without noise are
computed. The noisy logit of the draw's id is not below the best of theirs, q, and its noisy bound,
u being a bound but for the MARGIN of encode_query.py, is not below q - a MARGIN - b NOISE_ERROR but
for what a few float32 operations round off: less than 2^-22 of it and 2^-16 b. So it is in a group
that is listed. Slot 0 finds the largest logit that way. It lists, too, what weighs more than
e^-HEAVY of all by its bound, so that log Z is closer: at most e^HEAVY ids.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws, C
groups and ROOM ids that are listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import norm_of
from logitsieve.gpu.kernels.encode_query import FACTORS, MARGIN
from logitsieve.gpu.kernels.exact_logits import exact_logits
from logitsieve.gpu.kernels.gumbel import NOISE_ERROR, draw_of, factors, noise32, noise64
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED, WANTED, admissible
from logitsieve.gpu.kernels.topk import kth_floor, ordered32, unordered32

NOISY_SPARE = tl.constexpr(2.0**-16)  # of b, for rounding a x + b G
ERROR_SPARE, TWICE_SPARE = tl.constexpr(1.001), tl.constexpr(2.001)  # of errors
BEST_SPARE = tl.constexpr(2.0**-20)  # of the largest

LIGHT = tl.constexpr(7.0)  # nats: under a thousandth
DEEP = tl.constexpr(30.0)  # nats: what is lighter is nothing to log Z, whatever float32 is off by
LOOSE = tl.constexpr(0.5)  # nats of slack from which on light ids are not left to float32
HEAVY = tl.constexpr(5.5)  # nats
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32: what is below is banned


@triton.jit
def select_groups_kernel(
    maxima, leaders, sums, hidden, limits, scale, seeds, step, listed, counts, overfull, cuts,
    status, D, G,
    C: tl.constexpr, ROOM: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    FALLBACK: tl.constexpr,
):  # fmt: skip
    """listed [B, N + 1, C], counts, overfull and cuts [B, N + 1], status [B]; programs are them.

    `overfull` slots have too many to list, and are left to draws.py. cuts: what the maxima of
    listed groups reach. Slot 0 lists no more groups than have ROOM ids. FALLBACK: for rows that
    were PASSED_ON, and stay so.
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
        best, loose, most = tl.max(values, 0), slack * factor > LOOSE, ROOM // GROUP
        error = slack
        if slot > 0:
            (a, b), inside = factors(factor), place < G
            error, most = slack * a + b * (NOISE_ERROR + NOISY_SPARE), C
            logits = tl.load(maxima + (flat - slot) * G + place, mask=inside, other=float("-inf"))
            led = tl.load(leaders + (flat - row - 1) * G + place, mask=inside, other=float("-inf"))
            ids = tl.argmax(logits, 0) * GROUP + tl.arange(0, GROUP)
            noise = noise32(tl.load(seeds + row), tl.load(step), draw_of(step, slot - 1), ids)
            best = tl.maximum(tl.max(led, 0), tl.max(logits, 0) * a + tl.min(noise, 0) * b)
        sure = best - (error * TWICE_SPARE).to(tl.float32) - tl.abs(best) * BEST_SPARE
        cut, short = sure, sure
        if slot == 0:
            weights = tl.load(sums + row * G + place, mask=place < G, other=0.0)
            light = _light_logit(values, weights, best, slack, factor, tl.where(loose, DEEP, LIGHT))
            cut = tl.minimum(sure, light)
            short = tl.where(loose, cut, sure)
            many = tl.sum((values >= cut).to(tl.int32), 0) > most
            floor = unordered32(kth_floor(ordered32(values), (place < G) & many, most // 2))
            cut = tl.where(many, tl.maximum(cut, floor), cut)
        else:
            cut = tl.maximum(cut, LOWEST)
            short = cut
        chosen = (values >= cut) & (place < G)
        count = tl.sum(chosen.to(tl.int32), 0)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(listed + flat * C + slots, place, mask=chosen & (slots < C))
        over = (count > most) | (cut > short)
        tl.store(counts + flat, tl.where(fits & (count <= most), count, 0))
        tl.store(overfull + flat, tl.where(fits & over, 1, 0))
        tl.store(cuts + flat, cut)
        if (slot == 0) & (not FALLBACK):
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


@triton.jit
def list_ids_kernel(
    maxima, scale, seeds, step, listed, counts, cuts, overfull, ids, sizes, V, G,
    C: tl.constexpr, ROOM: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ids [B, N + 1, ROOM] and sizes [B, N + 1] of listed groups; programs are (rows, slots).

    BLOCK ids at a time: in slot 0 all, else those whose noise, with their group's largest logit,
    reaches the slot's cut. A slot with too many is overfull.
    """
    row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat, lane = row * tl.num_programs(1) + slot, tl.arange(0, BLOCK)
    count, cut, size = tl.load(counts + flat), tl.load(cuts + flat), 0
    seed, now, (a, b) = tl.load(seeds + row), tl.load(step), factors(tl.load(scale))
    for start in range(0, count, BLOCK // GROUP):
        place = start + lane // GROUP
        group = tl.load(listed + flat * C + place, mask=place < count, other=0)
        named = group * GROUP + lane % GROUP
        chosen = (place < count) & (named < V)
        if slot > 0:
            logits = tl.load(maxima + (flat - slot) * G + group)
            noise = noise32(seed, now, draw_of(step, slot - 1), named)
            chosen = chosen & (logits * a + noise * b >= cut)
        size = append_ids(ids + flat * ROOM, size, named, chosen, ROOM)
    tl.store(sizes + flat, tl.where(size > ROOM, 0, size))
    if size > ROOM:
        tl.store(overfull + flat, 1)


@triton.jit
def append_ids(ids, size, named, chosen, ROOM: tl.constexpr):
    """The size of a list ids [ROOM] after those of `named` that are chosen, which are appended.

    Beyond ROOM they are only counted.
    """
    places = size + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(ids + places, named, mask=chosen & (places < ROOM))
    return size + tl.sum(chosen.to(tl.int32), 0)


@triton.jit
def select_groups_by_bound_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step,
    maxima, leaders, sums, terms, listed, counts, cuts, status, V, D, G,
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
        led = tl.argmax(values, 0)
        largest, lane = led, tl.arange(0, 2 * GROUP)
        if slot > 0:
            bounds, inside = maxima + (flat - slot) * G + place, place < G
            best = tl.load(leaders + (flat - row - 1) * G + place, mask=inside, other=float("-inf"))
            led = tl.argmax(best, 0)
            largest = tl.argmax(tl.load(bounds, mask=inside, other=float("-inf")), 0)
        ids = tl.where(lane < GROUP, led, largest) * GROUP + lane % GROUP
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
