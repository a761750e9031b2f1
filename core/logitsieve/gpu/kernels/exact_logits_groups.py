"""Exact logits of the ids of the groups that each slot of a row lists.

A list of ids is one of groups of 1.

Shape letters: B rows of hidden, V vocabulary, D hidden size, N draws, C groups listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.edits import exact_logits


@triton.jit
def finalists_kernel(
    weight, bias, hidden, offsets, edited, instead, listed, counts, values, V, D, slots,
    C: tl.constexpr, GROUP: tl.constexpr, EDITS: tl.constexpr, AT_ONCE: tl.constexpr = 1,
):  # fmt: skip
    """values [B, N + 1, C GROUP], -inf beyond V; what lies beyond a count is not written.

    The programs of a slot share what it lists, AT_ONCE groups at a time.
    """
    flat, lane = tl.program_id(0).to(tl.int64), tl.arange(0, AT_ONCE * GROUP)
    count = tl.load(counts + flat)
    for start in range(tl.program_id(1) * AT_ONCE, count, tl.num_programs(1) * AT_ONCE):
        entry = start + lane // GROUP
        ids = tl.load(listed + flat * C + entry, mask=entry < count, other=0) * GROUP
        ids += lane % GROUP
        inside = (entry < count) & (ids < V)
        found = exact_logits(
            weight, bias, hidden, offsets, edited, instead, flat // slots, ids, inside, D, EDITS
        )
        tl.store(values + (flat * C + start) * GROUP + lane, found, mask=entry < count)


@triton.jit
def largest_logit(
    values, counts, crowded, tops, row, slots,
    C: tl.constexpr, GROUP: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """A row's largest logit in float64: of slot 0's list, or of all shares if that is crowded."""
    flat = row * slots
    place, share = tl.arange(0, C * GROUP), tl.arange(0, SHARES)
    count = tl.load(counts + flat) * GROUP
    own = tl.load(values + flat * C * GROUP + place, mask=place < count, other=float("-inf"))
    shares = tl.where(tl.load(crowded + flat) > 0, SHARES, 0)
    top = tl.load(tops + row * SHARES + share, mask=share < shares, other=float("-inf"))
    return tl.maximum(tl.max(own, 0), tl.max(top, 0))
