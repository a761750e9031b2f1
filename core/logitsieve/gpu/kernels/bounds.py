"""An upper bound of every logit from the codes of the sketch, and the rows of W to compute.

Products of codes are summed in whole numbers, on the tensor cores where there are many rows, so
these sums do not depend on the batch. Every later step is one that rounds in one way only: a bound
is the same number in every kernel. The largest of each group is kept.

First the rows whose bounds are largest are computed. The k-th best of their exact logits, less the
margin, is a threshold: a row whose bound is below it is in no top k, and all others are computed.
Both times the rows wanted are those whose bound is in an interval, so none is computed twice. They
are noted in a list, in an order that no answer depends on.

Shape letters: B rows of hidden, V vocabulary, K answers, G groups of GROUP ids, T bytes of a row of
codes, C groups that are listed at most, N ids of a row's list at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.encode_query import ERROR, FACTORS, MARGIN, REST, SCALE
from logitsieve.gpu.kernels.scan import store_maxima
from logitsieve.gpu.kernels.status import PASSED_ON, WANTED, any_of
from logitsieve.gpu.kernels.topk import kth_floor, kth_largest, ordered32, unordered32

STEP = tl.constexpr(64)  # codes at once: T is a multiple
CUT_SPARE = tl.constexpr(2.0**-22)  # of the k-th best and the margin


@triton.jit
def bounds_kernel(
    codes, scales, rests, bias, planes, factors, status, maxima, B, V, G,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """maxima [B, G] of upper bounds; programs are (tiles of BLOCK_V ids, BLOCK_B rows).

    Blocks without a row that is WANTED are left out.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    ids, rows = tile * BLOCK_V + tl.arange(0, BLOCK_V), block * BLOCK_B + tl.arange(0, BLOCK_B)
    if any_of(status, rows, B, WANTED):
        _, uppers = tile_bounds(codes, scales, rests, bias, planes, factors, ids, rows, B, V, WIDTH)
        store_maxima(maxima, uppers, tile, rows, rows < B, G, GROUP)


@triton.jit
def tile_bounds(
    codes, scales, rests, bias, planes, factors, ids, rows, B, V, WIDTH: tl.constexpr
):  # fmt: skip
    """float32 (estimates, uppers) [ids, rows], -inf beyond V: no logit exceeds upper + MARGIN."""
    inside, real, own = ids < V, rows < B, factors + rows.to(tl.int64) * FACTORS
    sums = _code_sums(codes, planes, ids, rows, B, V, WIDTH).to(tl.float32)
    scale = tl.load(own + SCALE, mask=real, other=0.0).to(tl.float32)[None, :]
    error = tl.load(own + ERROR, mask=real, other=0.0).to(tl.float32)[None, :]
    rest = tl.load(own + REST, mask=real, other=0.0).to(tl.float32)[None, :]
    s = tl.load(scales + ids, mask=inside, other=0.0)[:, None]
    n = tl.load(rests + ids, mask=inside, other=0.0)[:, None]
    b = tl.load(bias + ids, mask=inside, other=float("-inf"))[:, None]
    estimates = tl.fma(sums * scale, s, b)
    return estimates, tl.fma(s, error, tl.fma(n, rest, estimates))


@triton.jit
def _code_sums(codes, planes, ids, rows, B, V, WIDTH: tl.constexpr):
    """int32 dots [ids, rows] of eight-bit and fifteen-bit codes. One row is summed without dots."""
    lane = tl.arange(0, STEP)
    starts, mask = codes + ids.to(tl.int64)[:, None] * WIDTH, (ids < V)[:, None]
    if rows.shape[0] == 1:
        row = planes + tl.sum(rows, 0).to(tl.int64) * 2 * WIDTH
        sums = tl.zeros([ids.shape[0], STEP], tl.int32)
        for t in tl.range(0, WIDTH, STEP, loop_unroll_factor=4):
            q = tl.load(starts + (t + lane)[None, :], mask=mask, other=0).to(tl.int32)
            upper = tl.load(row + t + lane).to(tl.int32)
            r = 128 * upper + tl.load(row + WIDTH + t + lane).to(tl.int32)
            sums += q * r[None, :]
        dots = tl.sum(sums, 1)[:, None]
    else:
        columns, real = planes + rows.to(tl.int64)[None, :] * 2 * WIDTH, (rows < B)[None, :]
        uppers = tl.zeros([ids.shape[0], rows.shape[0]], tl.int32)
        lowers = tl.zeros([ids.shape[0], rows.shape[0]], tl.int32)
        for t in range(0, WIDTH, STEP):
            q = tl.load(starts + (t + lane)[None, :], mask=mask, other=0)
            upper = tl.load(columns + (t + lane)[:, None], mask=real, other=0)
            lower = tl.load(columns + WIDTH + (t + lane)[:, None], mask=real, other=0)
            uppers = tl.dot(q, upper, uppers)
            lowers = tl.dot(q, lower, lowers)
        dots = 128 * uppers + lowers
    return dots


@triton.jit
def seed_kernel(
    maxima, listed, counts, ends, sizes, done, status, G, seeds,
    C: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """List the `seeds` to 2 `seeds` groups with the largest maxima [B, G], as [B, C].

    `ends` [2, B]: rows are wanted from the first on, and up to the second. Lists of ids are empty.
    """
    row, B = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    tl.store(counts + row, 0)
    tl.store(sizes + row, 0)
    tl.store(done + row, 0)
    if tl.load(status + row) == WANTED:
        place = tl.arange(0, GROUPS)
        values = tl.load(maxima + row * G + place, mask=place < G, other=float("-inf"))
        reach = unordered32(kth_floor(ordered32(values), place < G, seeds))
        _list_groups((values >= reach) & (place < G), place, listed, counts, status, row, C)
        tl.store(ends + row, reach)
        tl.store(ends + B + row, float("inf"))


@triton.jit
def cut_kernel(
    maxima, values, sizes, factors, listed, counts, ends, done, status, G, k,
    C: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """List the groups that hold more rows that may be among the k best, given `values` [B, N]."""
    row, B = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    tl.store(counts + row, 0)
    if tl.load(status + row) == WANTED:
        size, slot = tl.load(sizes + row), tl.arange(0, N)
        found = tl.load(values + row * N + slot, mask=slot < size, other=float("-inf"))
        best = kth_largest(ordered32(found.to(tl.float32)), slot < size, k)
        worst = unordered32(best).to(tl.float64)
        margin = tl.load(factors + row * FACTORS + MARGIN)
        # Of `worst` and of the cut, what rounding them to float32 takes; and of this line.
        cut = (worst - margin - (tl.abs(worst) + margin) * CUT_SPARE).to(tl.float32)
        reach, place = tl.load(ends + row), tl.arange(0, GROUPS)
        most = tl.load(maxima + row * G + place, mask=place < G, other=float("-inf"))
        chosen = (most >= cut) & (place < tl.where(cut < reach, G, 0))
        _list_groups(chosen, place, listed, counts, status, row, C)
        tl.store(ends + row, cut)
        tl.store(ends + B + row, reach)
        tl.store(done + row, size)
        if size < k:
            tl.store(counts + row, 0)
            tl.store(status + row, PASSED_ON)


@triton.jit
def _list_groups(chosen, place, listed, counts, status, row, C: tl.constexpr):
    """The row is PASSED_ON where too many groups are chosen."""
    count = tl.sum(chosen.to(tl.int32), 0)
    slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(listed + row * C + slots, place, mask=chosen & (slots < C))
    tl.store(counts + row, tl.where(count > C, 0, count))
    if count > C:
        tl.store(status + row, PASSED_ON)


@triton.jit
def sieve_kernel(
    codes, scales, rests, bias, planes, factors, listed, counts, ends, ids, sizes, status, B, V,
    C: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Append to ids [B, N] those of the listed groups whose bounds are within the ends.

    The programs of a row share its groups, BLOCK ids at a time. A row whose ids are too many is
    PASSED_ON; then `sizes` is above N.
    """
    row, lane, at_once = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK), BLOCK // GROUP
    count, first = tl.load(counts + row), tl.program_id(1) * at_once
    low, high = tl.load(ends + row), tl.load(ends + tl.num_programs(0) + row)
    for start in range(first, count, tl.num_programs(1) * at_once):
        slot = start + lane // GROUP
        group = tl.load(listed + row * C + slot, mask=slot < count, other=0)
        named = group * GROUP + lane % GROUP
        here = tl.program_id(0) + tl.arange(0, 1)
        _, bounds = tile_bounds(
            codes, scales, rests, bias, planes, factors, named, here, B, V, WIDTH
        )
        upper = tl.reshape(bounds, [BLOCK])
        chosen = (slot < count) & (named < V) & (upper >= low) & (upper < high)
        found = tl.sum(chosen.to(tl.int32), 0)
        if found > 0:
            before = tl.atomic_add(sizes + row, found)
            places = before + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(ids + row * N + places, named, mask=chosen & (places < N))
            if before + found > N:
                tl.store(status + row, PASSED_ON)
