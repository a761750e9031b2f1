"""One pass over the sketch's codes: bounds of all logits with noise, and what they weigh.

What gumbel.py does with float32 logits, for draws without the rows of W: noise is added to the
upper bound u of a logit, so that no noisy logit is above its noisy bound. The largest of each group
and draw is kept, with one random number for each block; then the ids of listed groups are bounded
again, one by one, each with noise of its own.

For log Z there are three sums over a group: of e^{scale u}, of e^{scale x'}, and of
e^{scale (2 x' - u)}, x' being the estimate that lies in the middle between both bounds. An id that
slot 0 lists is computed, so it is taken out of its group's largest bound and sums.

Shape letters: B rows of hidden, V vocabulary, G groups of GROUP ids, N draws, T bytes of a row of
codes, C groups or ids listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.bounds import tile_bounds
from logitsieve.gpu.kernels.exact_logits import edits_of, first_of_group
from logitsieve.gpu.kernels.gumbel import draw_of, factors, group_sums, noise32, store_noisy
from logitsieve.gpu.kernels.select_groups import append_ids
from logitsieve.gpu.kernels.status import PASSED_ON, WANTED, any_of


@triton.jit
def envelope_kernel(
    codes, scales, rests, bias, planes, factors, scale, seeds, step, maxima, leaders, sums, status,
    B, V, G, draws,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G] and leaders [B, N, G] of gumbel.py; sums [B, 3, G].

    Sums are relative to e^{scale times the largest of slot 0}. Programs are (tiles of BLOCK_V ids,
    BLOCK_B rows). Blocks without a row WANTED are left out.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    ids, rows = tile * BLOCK_V + tl.arange(0, BLOCK_V), block * BLOCK_B + tl.arange(0, BLOCK_B)
    if any_of(status, rows, B, WANTED):
        estimates, uppers = tile_bounds(
            codes, scales, rests, bias, planes, factors, ids, rows, B, V, WIDTH
        )
        count: tl.constexpr = BLOCK_V // GROUP
        shape: tl.constexpr = [count, GROUP, BLOCK_B]
        groups, wide = tile * count + tl.arange(0, count), rows.to(tl.int64)[None, :]
        store_sums(
            maxima + wide * (draws + 1) * G + groups[:, None],
            sums + wide * 3 * G + groups[:, None],
            tl.reshape(estimates, shape), tl.reshape(uppers, shape), tl.load(scale), G,
            (groups < G)[:, None] & (rows < B)[None, :],
        )  # fmt: skip
        store_noisy(maxima, leaders, uppers, scale, seeds, step, tile, rows, B, G, draws, GROUP)


@triton.jit
def store_sums(maxima, sums, estimates, uppers, scale, G, real):
    """The largest bound of groups [groups, ids, rows], and their three sums: all [groups, rows]."""
    most, total = group_sums(uppers, scale)
    least = tl.expand_dims(tl.where(most > float("-inf"), most, 0.0), 1)
    some, factor = uppers > float("-inf"), scale.to(tl.float32)
    # What is banned, or beyond V, has no bound from below either.
    lowers = 2.0 * tl.where(some, estimates, 0.0) - tl.where(some, uppers, 0.0)
    lowers = tl.where(some, lowers, float("-inf"))
    tl.store(maxima, most, mask=real)
    tl.store(sums, total, mask=real)
    tl.store(sums + G, tl.sum(tl.exp((estimates - least) * factor), 1), mask=real)
    tl.store(sums + 2 * G, tl.sum(tl.exp((lowers - least) * factor), 1), mask=real)


@triton.jit
def row_bounds(
    codes, scales, rests, bias, planes, factors, offsets, edited, instead, row, ids, B, V,
    WIDTH: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """float32 (estimates, uppers) [N] of ids [N] for one row: what edits name is its own bound."""
    here = row.to(tl.int32) + tl.arange(0, 1)
    near, above = tile_bounds(codes, scales, rests, bias, planes, factors, ids, here, B, V, WIDTH)
    estimates, uppers = tl.reshape(near, [ids.shape[0]]), tl.reshape(above, [ids.shape[0]])
    if EDITS:
        named, value = edits_of(offsets, edited, instead, row, ids, ids < V)
        estimates = tl.where(named, value.to(tl.float32), estimates)
        uppers = tl.where(named, value.to(tl.float32), uppers)
    return estimates, uppers


@triton.jit
def edit_envelope_kernel(
    codes, scales, rests, bias, planes, factors, offsets, edited, instead, scale, seeds, step,
    maxima, leaders, sums, status, B, V, G, draws,
    WIDTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Groups of ids that edits change, once more; the programs of a row share its edits."""
    row = tl.program_id(0).to(tl.int64)
    start, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    end = tl.where(tl.load(status + row) == WANTED, end, start)
    for place in range(start + tl.program_id(1), end, tl.num_programs(1)):
        group, first = first_of_group(edited, place, start, GROUP)
        if first:
            ids = group * GROUP + tl.arange(0, GROUP)
            estimates, uppers = row_bounds(
                codes, scales, rests, bias, planes, factors, offsets, edited, instead, row, ids,
                B, V, WIDTH, True,
            )  # fmt: skip
            alone, begin = tl.zeros([1, 1], tl.int64) + group, row * (draws + 1) * G
            store_sums(
                maxima + begin + alone, sums + row * 3 * G + alone,
                tl.reshape(estimates, [1, GROUP, 1]), tl.reshape(uppers, [1, GROUP, 1]),
                tl.load(scale), G, alone < G,
            )  # fmt: skip
            store_noisy(
                maxima, leaders, tl.reshape(uppers, [GROUP, 1]), scale, seeds, step, group,
                row.to(tl.int32) + tl.arange(0, 1), B, G, draws, GROUP,
            )  # fmt: skip


@triton.jit
def select_ids_kernel(
    codes, scales, rests, bias, planes, terms, offsets, edited, instead, scale, seeds, step,
    listed, counts, cuts, maxima, sums, ids, sizes, status, B, V, G,
    C: tl.constexpr, ROOM: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """ids [B, N + 1, ROOM] and sizes [B, N + 1] of listed groups; programs are (rows, slots).

    BLOCK ids at a time: those whose own bounds reach the slot's cut.
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
            a, b = factors(tl.load(scale))
            noise = noise32(tl.load(seeds + row), tl.load(step), draw_of(step, slot - 1), named)
            bounds = uppers * a + noise * b
        chosen = (place < count) & (named < V) & (bounds >= cut)
        size = append_ids(ids + flat * ROOM, size, named, chosen, ROOM)
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
    tl.store(sizes + flat, tl.where(size > ROOM, 0, size))
    if size > ROOM:
        tl.store(status + row, PASSED_ON)
