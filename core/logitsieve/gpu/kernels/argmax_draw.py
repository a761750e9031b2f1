"""The id that each draw takes: the largest scale x + G in float64, equal ones by the lower id.

The arithmetic is that of sampling/gumbel.py, operation by operation, so the id is, too. (Only log
may round its last bit differently: two ids must be that close for it to matter.)

Shape letters: B rows of hidden, N draws, C groups listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dense_draws import NOBODY
from logitsieve.gpu.kernels.exact_logits_groups import largest_logit
from logitsieve.gpu.kernels.noise import draw_of, noise64
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED


@triton.jit
def winner_kernel(
    scale, seeds, step, listed, values, counts, crowded, tops, best, owners, status, drawn, slots,
    C: tl.constexpr, GROUP: tl.constexpr, SLOTS: tl.constexpr, SHARES: tl.constexpr,
    AGAIN: tl.constexpr,
):  # fmt: skip
    """drawn [B, N] int32, -1 for rows REFUSED; programs are (rows, draws).

    Rows that were PASSED_ON are left out, or, AGAIN, all others.
    """
    row, draw = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat, state = row * slots + draw + 1, tl.load(status + row)
    wanted = state != PASSED_ON
    if AGAIN:
        wanted = state == PASSED_ON
    if wanted:
        if state == REFUSED:
            winner = -1
        elif tl.load(crowded + flat) > 0:
            places = (row * SHARES + tl.arange(0, SHARES)) * SLOTS + draw + 1
            winner = _first_of_largest(tl.load(best + places), tl.load(owners + places))
        else:
            most = largest_logit(values, counts, crowded, tops, row, slots, C, GROUP, SHARES)
            place = tl.arange(0, C * GROUP)
            inside = place < tl.load(counts + flat) * GROUP
            found = tl.load(values + flat * C * GROUP + place, mask=inside, other=float("-inf"))
            group = tl.load(listed + flat * C + place // GROUP, mask=inside, other=0)
            ids = group * GROUP + place % GROUP
            noise = noise64(tl.load(seeds + row), tl.load(step), draw_of(step, draw), ids)
            winner = _first_of_largest((found - most) * tl.load(scale) + noise, ids)
        tl.store(drawn + row * tl.num_programs(1) + draw, winner)


@triton.jit
def _first_of_largest(values, ids):
    return tl.min(tl.where(values == tl.max(values, 0), ids, NOBODY), 0)
