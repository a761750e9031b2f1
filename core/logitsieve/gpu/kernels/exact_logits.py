"""Exact logits in float64 of named ids, or of the ids of listed groups.

Edits replace logits, with -inf for what is banned. They are CSR: row r owns
ids[offsets[r]:offsets[r+1]], distinct and rising, and their logits in float64
(decoding/logit_edits.py).

Shape letters: B rows of hidden, V vocabulary, D hidden size, N draws, M ids of a row, C groups
listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import dot64, norm_of
from logitsieve.gpu.kernels.status import WANTED, admissible


@triton.jit
def exact_logits(
    weight, bias, hidden, offsets, edited, instead, row, ids, inside, D, EDITS: tl.constexpr
):
    """[N] float64 logits of ids [N] for a row of hidden, as edited; -inf where not inside."""
    found = dot64(weight, ids, inside, hidden + row * D, D)
    found += tl.load(bias + ids, mask=inside, other=0.0).to(tl.float64)
    if EDITS:
        named, value = edits_of(offsets, edited, instead, row, ids, inside)
        found = tl.where(named, value, found)
    return tl.where(inside, found, float("-inf"))


@triton.jit
def edits_of(offsets, edited, instead, row, ids, inside):
    """[N] which of ids [N] a row's edits name, and the float64 logits that these have instead."""
    end = tl.load(offsets + row + 1)
    place = _first_not_below(edited, tl.load(offsets + row), end, ids)
    here = inside & (place < end)
    named = here & (tl.load(edited + place, mask=here, other=-1) == ids)
    return named, tl.load(instead + place, mask=named, other=0.0)


@triton.jit
def first_of_group(edited, place, start, GROUP: tl.constexpr):
    """The group of the edit at a place of a row's that begin at `start`; whether none is before."""
    group = tl.load(edited + place) // GROUP
    before = tl.load(edited + place - 1, mask=place > start, other=-1)
    return group, (before < 0) | (before // GROUP != group)


@triton.jit
def _first_not_below(edited, start, end, ids):
    """The place of each of ids [N] among edited[start:end]."""
    low = tl.zeros_like(ids).to(tl.int64) + start
    high = tl.zeros_like(ids).to(tl.int64) + end
    left = end - start
    while left > 0:
        middle = (low + high) >> 1
        below = tl.load(edited + middle, mask=middle < high, other=0x7FFFFFFF) < ids
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
        left = left >> 1
    return low


@triton.jit
def listed_logits_kernel(
    weight, bias, hidden, offsets, edited, instead, listed, counts, values, names, V, D, slots,
    C: tl.constexpr, GROUP: tl.constexpr, EDITS: tl.constexpr,
    AT_ONCE: tl.constexpr = 1, NAMES: tl.constexpr = False,
):  # fmt: skip
    """values [B, N + 1, C GROUP], -inf beyond V; what lies beyond a count is not written.

    The programs of a slot share what it lists, AT_ONCE groups at a time. With NAMES the ids are
    written to `names`, of the same shape. A list of ids is one of groups of 1.
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
        if NAMES:
            tl.store(names + (flat * C + start) * GROUP + lane, ids, mask=entry < count)


@triton.jit
def largest_logit(
    values, sizes, overfull, tops, row, slots, C: tl.constexpr, SHARES: tl.constexpr
):  # fmt: skip
    """A row's largest logit in float64: of slot 0's list, or of all shares if that is overfull."""
    flat = row * slots
    place, share = tl.arange(0, C), tl.arange(0, SHARES)
    size = tl.load(sizes + flat)
    own = tl.load(values + flat * C + place, mask=place < size, other=float("-inf"))
    shares = tl.where(tl.load(overfull + flat) > 0, SHARES, 0)
    top = tl.load(tops + row * SHARES + share, mask=share < shares, other=float("-inf"))
    return tl.maximum(tl.max(own, 0), tl.max(top, 0))


@triton.jit
def named_logits_kernel(weight, bias, hidden, limits, ids, logits, V, D, M, BLOCK: tl.constexpr):
    """logits [B, M] of ids [B, M], -inf where an id is negative; programs are (rows, blocks of M).

    NaN for rows that are not finite or so large that a logit might overflow.
    """
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < M
    named = tl.load(ids + row * M + place, mask=inside, other=-1)
    known = inside & (named >= 0) & (named < V)
    found = dot64(weight, named, known, hidden + row * D, D)
    found += tl.load(bias + named, mask=known, other=0.0).to(tl.float64)
    fits = admissible(norm_of(hidden + row * D, D), limits)
    found = tl.where(known, found, float("-inf"))
    tl.store(logits + row * M + place, tl.where(fits, found, float("nan")), mask=inside)


@triton.jit
def appended_logits_kernel(
    weight, bias, hidden, ids, values, done, sizes, status, D, N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """values [B, N] float64 from place done[r] to sizes[r]; the programs of a row share them."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    if tl.load(status + row) == WANTED:
        size, first = tl.load(sizes + row), tl.load(done + row) + tl.program_id(1) * BLOCK
        for start in range(first, size, tl.num_programs(1) * BLOCK):
            inside = start + lane < size
            named = tl.load(ids + row * N + start + lane, mask=inside, other=0)
            found = dot64(weight, named, inside, hidden + row * D, D)
            found += tl.load(bias + named, mask=inside, other=0.0).to(tl.float64)
            tl.store(values + row * N + start + lane, found, mask=inside)
