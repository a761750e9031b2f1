"""log Z: the logarithm of the sum of e^{scale x} over all ids, from what one pass over W left.

Listed groups are summed from exact logits, the rest from float32 sums relative to each group's
largest; all is added up in float64. The rest is off by e^{scale slack} at most, and by far less in
truth: that, times its share of the weight, is the error of log Z beside 2e-7 of rounding.

Shape letters: B rows of hidden, G groups, N draws, C groups listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.exact_logits_groups import largest_logit
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED


@triton.jit
def log_z_kernel(
    scale, maxima, sums, cuts, values, counts, crowded, tops, totals, status, log_z, G, slots,
    C: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr,
    AGAIN: tl.constexpr,
):  # fmt: skip
    """log_z [B], NaN for rows REFUSED; BLOCK groups at a time. AGAIN: for rows PASSED_ON alone."""
    row, wanted = tl.program_id(0).to(tl.int64), True
    if AGAIN:
        wanted = tl.load(status + row) == PASSED_ON
    if wanted:
        found = _log_z(
            scale, maxima, sums, cuts, values, counts, crowded, tops, totals, row, G, slots,
            C, GROUP, BLOCK, SHARES,
        )  # fmt: skip
        refused = tl.load(status + row) == REFUSED
        tl.store(log_z + row, tl.where(refused, float("nan"), found))


@triton.jit
def _log_z(
    scale, maxima, sums, cuts, values, counts, crowded, tops, totals, row, G, slots,
    C: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    flat, factor = row * slots, tl.load(scale)
    most = largest_logit(values, counts, crowded, tops, row, slots, C, GROUP, SHARES)
    if tl.load(crowded + flat) > 0:
        share = row * SHARES + tl.arange(0, SHARES)
        apart = (tl.load(tops + share) - most) * factor
        total = tl.sum(tl.load(totals + share) * tl.exp(apart), 0)
    else:
        place = tl.arange(0, C * GROUP)
        inside = place < tl.load(counts + flat) * GROUP
        found = tl.load(values + flat * C * GROUP + place, mask=inside, other=float("-inf"))
        total = tl.sum(tl.exp((found - most) * factor), 0)
        light, cut = tl.zeros([BLOCK], tl.float64), tl.load(cuts + row)
        for start in range(0, G, BLOCK):
            group = start + tl.arange(0, BLOCK)
            top = tl.load(maxima + flat * G + group, mask=group < G, other=float("-inf"))
            rest = tl.load(sums + row * G + group, mask=group < G, other=0.0)
            weights = rest * tl.exp(((top.to(tl.float64) - most) * factor).to(tl.float32))
            light += tl.where(top < cut, weights, 0.0).to(tl.float64)
        total += tl.sum(light, 0)
    return most * factor + tl.log(total)
