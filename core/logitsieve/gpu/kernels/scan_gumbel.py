"""One pass over W: float32 logits, their exponentials, and logits with noise, by groups of ids.

A draw from softmax(scale x) takes the id with the largest scale x + G, G being Gumbel noise. Here
that is a x + b G, a and b being scale and 1, or 1 and 1 / scale where scale is above 1: the order
is the same, and nothing overflows. Of each group and draw only the largest is kept.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws. Slot 0
of the N + 1 of a row holds logits without noise, slot n + 1 those of draw n.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.noise import draw_of, gumbel32, random_words
from logitsieve.gpu.kernels.scan import tile_logits
from logitsieve.gpu.kernels.status import PASSED_ON, any_of


@triton.jit
def perturb_kernel(
    weight, bias, hidden, scale, seeds, step, maxima, sums, status, B, V, D, G, draws,
    GROUP: tl.constexpr, AGAIN: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G]; sums [B, G] of e^{scale (x - the group's largest)}.

    Programs are (tiles of BLOCK_V ids, BLOCK_B rows). seeds [B], step [1] int64, scale [1] float64.
    AGAIN: as a fallback. Blocks without a row that was PASSED_ON are left out.
    """
    tile, block, wanted = tl.program_id(0), tl.program_id(1), True
    ids, rows = tile * BLOCK_V + tl.arange(0, BLOCK_V), block * BLOCK_B + tl.arange(0, BLOCK_B)
    if AGAIN:
        wanted = any_of(status, rows, B, PASSED_ON)
    if wanted:
        logits = tile_logits(weight, bias, hidden, ids, rows, B, V, D, BLOCK_D)
        count: tl.constexpr = BLOCK_V // GROUP
        groups, wide = tile * count + tl.arange(0, count), rows.to(tl.int64)[None, :]
        real = (groups < G)[:, None] & (rows < B)[None, :]
        most, total = group_sums(tl.reshape(logits, [count, GROUP, BLOCK_B]), tl.load(scale))
        tl.store(maxima + wide * (draws + 1) * G + groups[:, None], most, mask=real)
        tl.store(sums + wide * G + groups[:, None], total, mask=real)
        store_noisy(maxima, logits, scale, seeds, step, tile, rows, B, G, draws, GROUP)


@triton.jit
def store_noisy(
    maxima, logits, scale, seeds, step, tile, rows, B, G, draws, GROUP: tl.constexpr
):  # fmt: skip
    """maxima [B, N + 1, G] of slots 1 to N: of logits, or bounds, of a tile [ids, rows]."""
    count: tl.constexpr = logits.shape[0] // GROUP
    pairs: tl.constexpr = logits.shape[0] // 2
    width: tl.constexpr = logits.shape[1]
    groups = tile * count + tl.arange(0, count)
    starts = maxima + rows.to(tl.int64)[None, :] * (draws + 1) * G + groups[:, None]
    real = (groups < G)[:, None] & (rows < B)[None, :]
    seed, now = tl.load(seeds + rows, mask=rows < B, other=0)[None, :], tl.load(step)
    pair = (tile * pairs + tl.arange(0, pairs))[:, None]
    a, b = factors(tl.load(scale))
    even, odd = tl.split(tl.permute(tl.reshape(logits, [pairs, 2, width]), (0, 2, 1)))
    for draw in range(draws):
        number = draw_of(step, draw)
        most = tl.maximum(*perturbed(even, odd, seed, now, number, pair, a, b))
        most = tl.max(tl.reshape(most, [count, GROUP // 2, width]), 1)
        tl.store(starts + (draw + 1) * G, most, mask=real)


@triton.jit
def group_sums(logits, scale):
    """The largest of logits [groups, ids, rows] of each group, and the sum relative to it."""
    most = tl.max(logits, 1)
    # Nothing is left of a group that is banned altogether.
    least = tl.where(most > float("-inf"), most, 0.0)
    apart = (logits - tl.expand_dims(least, 1)) * scale.to(tl.float32)
    return most, tl.sum(tl.exp(apart), 1)


@triton.jit
def factors(scale):
    """float32 a and b: a x + b G is scale x + G, or that over scale."""
    return tl.minimum(scale, 1.0).to(tl.float32), tl.minimum(1.0 / scale, 1.0).to(tl.float32)


@triton.jit
def perturbed(even, odd, seed, step, draw, pair, a, b):
    """float32 logits of even and odd ids with their noise; near.py bounds what they may be off."""
    low, high, other_low, other_high = random_words(seed, step, draw, pair)
    return even * a + gumbel32(low, high) * b, odd * a + gumbel32(other_low, other_high) * b
