"""log Z, the logarithm of the sum of e^{scale x} over all ids: a number, or a proven interval.

After a pass over W, listed groups are summed from exact logits, the rest from float32 sums relative
to each group's largest; all is added up in float64. The rest is off by e^{scale slack} at most, and
by far less in practice: that, times its share of the weight, is the error of log Z beside 2e-7 of
rounding.

After a pass over the sketch, listed ids weigh what they weigh, in float64. All others weigh no more
than their upper bounds and no less than their lower ones, both moved by the MARGIN of
encode_query.py and by what edits and lower bounds lose in float32: ROUNDED_BOUND of the largest
logit, as one that is much larger than that weighs nothing. Of sums in float32, in nats,

    3e-5  a weight of a group, e^{scale (u - largest)}: three roundings of an exponent of at most
          88, two more in the exponential, and that itself;
    2e-5  e^{scale (largest - most)}, likewise, the exponent being rounded once;
    3e-5  for up to 512 steps of a sum

add up to less than OFF, and what underflows is less than TINY an id, or than OFF of its group's
largest. Where both bounds' sums are small, so is what OFF takes of log Z.

Shape letters: B rows of hidden, G groups of ids, N draws, C ids listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import norm_of
from logitsieve.gpu.kernels.encode_query import FACTORS, MARGIN
from logitsieve.gpu.kernels.exact_logits import largest_logit
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED, WANTED

OFF = tl.constexpr(1e-4)
TINY = tl.constexpr(1e-37)
ROUNDED = tl.constexpr(2.0**-40)  # of float64 sums, and of their logarithms
EACH = tl.constexpr(2.0**-60)  # of sums of a list or of shares, for each id
ROUNDED32 = tl.constexpr(2.0**-22)  # a float32 logit after its bias, and the largest one's rounding
ROUNDED_BOUND = tl.constexpr(2.0**-23)  # an edit or a lower bound in float32, of the largest logit


@triton.jit
def log_z_kernel(
    hidden, limits, scale, maxima, sums, cuts, values, sizes, overfull, tops, totals, status,
    log_z, scanned, V, D, G, slots,
    C: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr, FALLBACK: tl.constexpr,
):  # fmt: skip
    """log_z [B, 3] and scanned [B]; BLOCK groups at a time. FALLBACK: of rows PASSED_ON.

    log Z is NaN for rows REFUSED.
    """
    row, wanted = tl.program_id(0).to(tl.int64), True
    if FALLBACK:
        wanted = tl.load(status + row) == PASSED_ON
    if wanted:
        flat, factor, over = row * slots, tl.load(scale), tl.load(overfull + row * slots) > 0
        most = largest_logit(values, sizes, overfull, tops, row, slots, C, SHARES)
        off, light = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
        if over:
            share = row * SHARES + tl.arange(0, SHARES)
            apart = (tl.load(tops + share) - most) * factor
            heavy = tl.sum((tl.load(totals + share) + 1.0) * tl.exp(apart), 0)
        else:
            place = tl.arange(0, C)
            inside = place < tl.load(sizes + flat)
            found = tl.load(values + flat * C + place, mask=inside, other=float("-inf"))
            heavy = tl.sum(tl.exp((found - most) * factor), 0)
            each, cut = tl.zeros([BLOCK], tl.float64), tl.load(cuts + flat)
            for start in range(0, G, BLOCK):
                group = start + tl.arange(0, BLOCK)
                top = tl.load(maxima + flat * G + group, mask=group < G, other=float("-inf"))
                rest = tl.load(sums + row * G + group, mask=group < G, other=0.0)
                weights = rest * tl.exp(((top.to(tl.float64) - most) * factor).to(tl.float32))
                each += tl.where(top < cut, weights, 0.0).to(tl.float64)
            light = tl.sum(each, 0)
            slack = norm_of(hidden + row * D, D) * tl.load(limits + 2) + tl.load(limits + 3)
            off = slack * factor + ROUNDED32 * (tl.abs(most) * factor + 90.0) + OFF
        begin, lost = most * factor, tl.where(over, 0.0, V * TINY)
        rounded = ROUNDED * (1.0 + tl.abs(begin) + off) + V * EACH
        least = begin + tl.log(heavy + light * tl.exp(-off)) - rounded
        largest = begin + tl.log(heavy * tl.exp(-off) + light + lost) + off + rounded
        value = tl.minimum(tl.maximum(begin + tl.log(heavy + light), least), largest)
        nothing, refused = float("nan"), tl.load(status + row) == REFUSED
        _store_interval(
            log_z + 3 * row,
            tl.where(refused, nothing, value),
            tl.where(refused, nothing, least),
            tl.where(refused, nothing, largest),
        )
        tl.store(scanned + row, V)


@triton.jit
def interval_kernel(
    scale, maxima, sums, terms, values, sizes, status, log_z, scanned, V, G, slots,
    C: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """log_z [B, 3] and scanned [B] of rows WANTED; NaN and 0 of rows REFUSED. SLOTS >= N + 1."""
    row = tl.program_id(0).to(tl.int64)
    state, flat = tl.load(status + row), row * slots
    if state == WANTED:
        factor, place = tl.load(scale), tl.arange(0, C)
        inside = place < tl.load(sizes + flat)
        found = tl.load(values + flat * C + place, mask=inside, other=float("-inf"))
        most = tl.max(found, 0)
        total = tl.sum(tl.exp((found - most) * factor), 0)
        off = tl.load(terms + row * FACTORS + MARGIN) + ROUNDED_BOUND * tl.abs(most)
        top, sum_ = maxima + flat * G, sums + row * 3 * G
        near = _group_weight(top, sum_ + G, most, 0.0, factor, G, BLOCK)
        low = _group_weight(top, sum_ + 2 * G, most, -off, factor, G, BLOCK)
        high = _group_weight(top, sum_, most, off, factor, G, BLOCK)
        begin = most * factor
        rounded = ROUNDED * (1.0 + tl.abs(begin))
        least = begin + tl.log(total + low * (1.0 - OFF)) - rounded
        largest = begin + tl.log(total + high * (1.0 + OFF) + V * TINY) + rounded
        value = tl.minimum(tl.maximum(begin + tl.log(total + near), least), largest)
        _store_interval(log_z + 3 * row, value, least, largest)
        slot = tl.arange(0, SLOTS)
        each = tl.load(sizes + flat + slot, mask=slot < slots, other=0)
        tl.store(scanned + row, tl.minimum(tl.sum(each, 0) + (2 * slots - 1) * GROUP, V))
    elif state == REFUSED:
        nothing = tl.full([], float("nan"), tl.float64)
        _store_interval(log_z + 3 * row, nothing, nothing, nothing)
        tl.store(scanned + row, 0)


@triton.jit
def _group_weight(maxima, sums, most, off, scale, G, BLOCK: tl.constexpr):
    """The float64 sum of e^{scale (x + off - most)} over what the groups' sums are made of."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, G, BLOCK):
        group = start + tl.arange(0, BLOCK)
        top = tl.load(maxima + group, mask=group < G, other=float("-inf")).to(tl.float64)
        own = tl.load(sums + group, mask=group < G, other=0.0)
        apart = ((top + off - most) * scale).to(tl.float32)
        total += tl.where(own > 0.0, own * tl.exp(apart), 0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def _store_interval(log_z, value, low, high):
    tl.store(log_z, value)
    tl.store(log_z + 1, low)
    tl.store(log_z + 2, high)
