"""Logits that are not W's: those that edits name have others instead, -inf for what is banned.

Edits are CSR: row r owns ids[offsets[r]:offsets[r+1]], distinct and rising, and their logits in
float64 (decoding/logit_edits.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import dot64


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
    """Where each of ids [N] stands, or would stand, among edited[start:end]."""
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
