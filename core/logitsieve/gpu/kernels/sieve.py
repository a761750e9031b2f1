"""Which rows of W are computed: first some whose bounds are largest, then all that reach these.

The k-th best of the first exact logits, less the margin, is a threshold: a row whose bound is below
it is in no top k. Both times the rows wanted are those whose bound is in an interval, so none is
computed twice. They are noted in a list, in an order that no answer depends on.

Shape letters: B rows of hidden, V vocabulary, K answers, G groups of GROUP ids, C groups that are
listed at most, N ids of a row's list at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.bounds import tile_bounds
from logitsieve.gpu.kernels.encode_query import FACTORS, MARGIN
from logitsieve.gpu.kernels.rows import ordered32, unordered32
from logitsieve.gpu.kernels.select_topk_groups import kth_floor, kth_largest
from logitsieve.gpu.kernels.status import PASSED_ON, WANTED


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
        cut = (worst - margin - 2.0**-22 * (tl.abs(worst) + margin)).to(tl.float32)
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
