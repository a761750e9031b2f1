"""All of W in float64 for slots that have too many groups to list.

So it is where many logits are equal, as those of a row of zeros, or where it is so cold that
float32 logits say nothing. Each program looks at its share of the ids; log_z.py and winner.py take
what the shares found.

Shape letters: B rows of hidden, V vocabulary, D hidden size, N draws.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.edits import exact_logits
from logitsieve.gpu.kernels.exact_logits_groups import largest_logit
from logitsieve.gpu.kernels.noise import draw_of, noise64

NOBODY = tl.constexpr(0x7FFFFFFF)  # an id that none has


@triton.jit
def crowded_sums_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, crowded, tops, totals,
    V, D, slots, share,
    BLOCK: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """tops and totals [B, shares] of crowded slots 0: largest logits, sums relative to them."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(crowded + row * slots) > 0:
        factor = tl.load(scale)
        most, total = tl.full([], float("-inf"), tl.float64), tl.full([], 0.0, tl.float64)
        end = tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, ids < end, D, EDITS
            )
            most, before = tl.maximum(most, tl.max(found, 0)), most
            least = tl.where(most > float("-inf"), most, 0.0)
            total *= tl.exp((before - least) * factor)
            total += tl.sum(tl.exp((found - least) * factor), 0)
        place = row * tl.num_programs(1) + part
        tl.store(tops + place, most)
        tl.store(totals + place, total)


@triton.jit
def crowded_draws_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step,
    values, counts, crowded, tops, best, owners, V, D, slots, share,
    C: tl.constexpr, GROUP: tl.constexpr, SLOTS: tl.constexpr, SHARES: tl.constexpr,
    BLOCK: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """best and owners [B, SHARES, SLOTS]: the winners among a share's ids, of crowded draws."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    full = tl.load(crowded + row * slots + slot, mask=(slot > 0) & (slot < slots), other=0) > 0
    if tl.sum(full.to(tl.int32), 0) > 0:
        most = largest_logit(values, counts, crowded, tops, row, slots, C, GROUP, SHARES)
        seed, now, factor = tl.load(seeds + row), tl.load(step), tl.load(scale)
        leading = tl.full([SLOTS], float("-inf"), tl.float64)
        winner = tl.full([SLOTS], NOBODY, tl.int32)
        end = tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, ids < end, D, EDITS
            )
            scaled = (found - most) * factor
            for own in range(1, slots):
                if tl.load(crowded + row * slots + own) > 0:
                    noisy = scaled + noise64(seed, now, draw_of(step, own - 1), ids)
                    top = tl.max(noisy, 0)
                    name = tl.min(tl.where(noisy == top, ids, NOBODY), 0)
                    # Ids rise, so that an equal value never displaces one.
                    taken = (slot == own) & (top > leading)
                    leading = tl.where(taken, top, leading)
                    winner = tl.where(taken, name, winner)
        begin = (row * SHARES + part) * SLOTS + slot
        tl.store(best + begin, leading)
        tl.store(owners + begin, winner)
