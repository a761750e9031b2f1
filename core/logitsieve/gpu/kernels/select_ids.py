"""The ids of listed groups whose own perturbed bounds reach the cut of reach.py.

What slot 0 takes is computed, and weighs what it weighs: it is taken out of its group's largest
bound and sums, which interval.py adds up.

Shape letters: B rows of hidden, V vocabulary, G groups of GROUP ids, N draws, C groups or ids
listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.envelope import row_bounds, store_sums
from logitsieve.gpu.kernels.noise import draw_of, gumbel32, random_words
from logitsieve.gpu.kernels.scan_gumbel import factors
from logitsieve.gpu.kernels.status import PASSED_ON


@triton.jit
def sift_kernel(
    codes, scales, rests, bias, planes, terms, offsets, edited, instead, scale, seeds, step,
    listed, counts, cuts, maxima, sums, ids, sizes, status, B, V, G,
    C: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    EDITS: tl.constexpr,
):  # fmt: skip
    """ids [B, N + 1, C] and sizes [B, N + 1]; programs are (rows, slots), BLOCK ids at a time.

    A row with too many is PASSED_ON.
    """
    row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat, lane = row * tl.num_programs(1) + slot, tl.arange(0, BLOCK)
    count, cut, size = tl.load(counts + flat), tl.load(cuts + flat), 0
    some: tl.constexpr = BLOCK // GROUP
    for start in range(0, count, some):
        place = start + lane // GROUP
        group = tl.load(listed + flat * C + place, mask=place < count, other=0)
        named = group * GROUP + lane % GROUP
        estimates, uppers = row_bounds(
            codes, scales, rests, bias, planes, terms, offsets, edited, instead, row, named,
            B, V, WIDTH, EDITS,
        )  # fmt: skip
        bounds = uppers
        if slot > 0:
            seed, now, number = tl.load(seeds + row), tl.load(step), draw_of(step, slot - 1)
            bounds = _perturbed(uppers, named, seed, now, number, tl.load(scale))
        chosen = (place < count) & (named < V) & (bounds >= cut)
        places = size + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(ids + flat * C + places, named, mask=chosen & (places < C))
        size += tl.sum(chosen.to(tl.int32), 0)
        if slot == 0:
            shape: tl.constexpr = [some, GROUP, 1]
            own = start + tl.arange(0, some)
            groups = tl.load(listed + flat * C + own, mask=own < count, other=0)[:, None]
            store_sums(
                maxima + flat * G + groups, sums + row * 3 * G + groups,
                tl.reshape(tl.where(chosen, float("-inf"), estimates), shape),
                tl.reshape(tl.where(chosen, float("-inf"), uppers), shape),
                tl.load(scale), G, (own < count)[:, None],
            )  # fmt: skip
    tl.store(sizes + flat, tl.where(size > C, 0, size))
    if size > C:
        tl.store(status + row, PASSED_ON)


@triton.jit
def _perturbed(bounds, ids, seed, step, draw, scale):
    """float32 a u + b G of ids: what `perturbed` of perturb.py makes of pairs."""
    p, q, r, s = random_words(seed, step, draw, ids >> 1)
    odd, (a, b) = (ids & 1) == 1, factors(scale)
    return bounds * a + gumbel32(tl.where(odd, r, p), tl.where(odd, s, q)) * b
