"""float32 logits of all rows of W, of which only the largest of each group of rows is kept.

W is read once and V / GROUP numbers are written a row: no [B, V] logits lie in memory. A float32
logit is within `slack` of the exact one. With t a number that k maxima reach, the k-th best exact
logit is at least t - slack, so a group whose maximum is below t - 2 slack holds none of the best.
t need not be the k-th maximum itself: any that k to 2 k of them reach will do, and is found by
halving an interval.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, C groups that
are listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import INTERPRETED, norm_of, widened
from logitsieve.gpu.kernels.status import DENSE, PASSED_ON, REFUSED, WANTED, admissible, any_of
from logitsieve.gpu.kernels.topk import kth_floor, ordered32, unordered32

# Of a slack and of the largest logit, for what float32 rounds of a cut.
SLACK_SPARE, REACH_SPARE = tl.constexpr(1.0001), tl.constexpr(2.4e-7)


@triton.jit
def scan_kernel(
    weight, bias, hidden, status, maxima, B, V, D, G,
    GROUP: tl.constexpr, FALLBACK: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """maxima [B, G] of hidden [B, D]; programs are (tiles of BLOCK_V ids, BLOCK_B rows).

    FALLBACK: blocks without a row that was PASSED_ON are left out.
    """
    tile, block, wanted = tl.program_id(0), tl.program_id(1), True
    ids, rows = tile * BLOCK_V + tl.arange(0, BLOCK_V), block * BLOCK_B + tl.arange(0, BLOCK_B)
    if FALLBACK:
        wanted = any_of(status, rows, B, PASSED_ON)
    if wanted:
        logits = tile_logits(weight, bias, hidden, ids, rows, B, V, D, BLOCK_D)
        store_maxima(maxima, logits, tile, rows, rows < B, G, GROUP)


@triton.jit
def tile_logits(weight, bias, hidden, ids, rows, B, V, D, BLOCK_D: tl.constexpr):
    """float32 logits [ids, rows], -inf beyond V. One row is summed without the tensor cores."""
    inside, real = ids < V, rows < B
    starts, lane = weight + ids.to(tl.int64)[:, None] * D, tl.arange(0, BLOCK_D)
    if rows.shape[0] == 1:
        sums = tl.zeros([ids.shape[0], BLOCK_D], tl.float32)
        row = hidden + tl.sum(rows, 0).to(tl.int64) * D
        for d in range(0, D, BLOCK_D):
            within = d + lane < D
            mask = inside[:, None] & within[None, :]
            w = widened(tl.load(starts + (d + lane)[None, :], mask=mask, other=0))
            sums += w * tl.load(row + d + lane, mask=within, other=0.0)[None, :]
        dots = tl.sum(sums, 1)[:, None]
    else:
        dots = tl.zeros([ids.shape[0], rows.shape[0]], tl.float32)
        columns = hidden + rows.to(tl.int64)[None, :] * D
        for d in range(0, D, BLOCK_D):
            within = d + lane < D
            mask = inside[:, None] & within[None, :]
            w = tl.load(starts + (d + lane)[None, :], mask=mask, other=0)
            h = tl.load(
                columns + (d + lane)[:, None], mask=within[:, None] & real[None, :], other=0.0
            )
            dots = _add_dots(w, h, dots)
    logits = dots + tl.load(bias + ids, mask=inside, other=0.0)[:, None]
    return tl.where(inside[:, None], logits, float("-inf"))


@triton.jit
def _add_dots(w, h, dots):
    """dots + w h on the tensor cores, whose factors have 11 bits (tf32) or 8 (bfloat16).

    A weight of a half type is such a factor as it is, and h is the sum of two but for what
    matrix.py calls DROPPED: so two products do, and bfloat16's take half the time of tf32's.
    """
    if w.dtype == tl.float32:
        dots = tl.dot(w, h, dots, input_precision="tf32x3")
    elif w.dtype == tl.float16:
        high, wide = _cut(h, 0xFFFFE000), w.to(tl.float32)
        dots = tl.dot(wide, high, dots, input_precision="tf32")
        dots = tl.dot(wide, h - high, dots, input_precision="tf32")
    else:
        high = _cut(h, 0xFFFF0000)
        low = _cut(h - high, 0xFFFF0000)
        if INTERPRETED:
            dots = tl.dot(widened(w), high, dots, input_precision="ieee")
            dots = tl.dot(widened(w), low, dots, input_precision="ieee")
        else:
            factor = w.to(tl.bfloat16, bitcast=True)
            dots = tl.dot(factor, high.to(tl.bfloat16), dots)
            dots = tl.dot(factor, low.to(tl.bfloat16), dots)
    return dots


@triton.jit
def _cut(values, bits: tl.constexpr):
    """float32 without the bits that are not in `bits`: the next number towards zero."""
    return (values.to(tl.uint32, bitcast=True) & bits).to(tl.float32, bitcast=True)


@triton.jit
def store_maxima(maxima, logits, tile, rows, real, G, GROUP: tl.constexpr):
    """The largest of every GROUP ids of logits [ids, rows]."""
    count: tl.constexpr = logits.shape[0] // GROUP
    most = tl.max(tl.reshape(logits, [count, GROUP, logits.shape[1]]), 1)
    groups = tile * count + tl.arange(0, count)
    places = rows.to(tl.int64)[None, :] * G + groups[:, None]
    tl.store(maxima + places, most, mask=(groups < G)[:, None] & real[None, :])


@triton.jit
def select_topk_groups_kernel(
    maxima, hidden, limits, listed, counts, status, D, G, k,
    C: tl.constexpr, GROUPS: tl.constexpr, FALLBACK: tl.constexpr,
):  # fmt: skip
    """listed [B, C] and counts [B] of maxima [B, G]; status [B] REFUSED, DENSE or WANTED.

    `limits`: max ||w||, max |b| and the slack of a row of norm 1, beside that of a row of norm 0.
    GROUPS is a power of two, G or more. FALLBACK: for rows that were PASSED_ON.
    """
    row, passed = tl.program_id(0).to(tl.int64), True
    if FALLBACK:
        passed = tl.load(status + row) == PASSED_ON
    if passed:
        norm = norm_of(hidden + row * D, D)
        fits = admissible(norm, limits)
        slack = (norm * tl.load(limits + 2) + tl.load(limits + 3)).to(tl.float32) * SLACK_SPARE
        place = tl.arange(0, GROUPS)
        values = tl.load(maxima + row * G + place, mask=place < G, other=float("-inf"))
        reach = unordered32(kth_floor(ordered32(values), place < G, k))
        cut = reach - 2.0 * slack - tl.abs(reach) * REACH_SPARE
        chosen = (values >= cut) & (place < G)
        count = tl.sum(chosen.to(tl.int32), 0)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(listed + row * C + slots, place, mask=chosen & (slots < C))
        overfull = count > C
        tl.store(counts + row, tl.where(overfull, 0, tl.where(fits, count, 0)))
        tl.store(status + row, tl.where(fits, tl.where(overfull, DENSE, WANTED), REFUSED))
    else:
        tl.store(counts + row, 0)
