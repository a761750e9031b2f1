"""Scratch of a race for draws: rows of hidden, their logits, and what one race needs.

Shape letters: B rows of hidden at once, D hidden size, S ids: V in whole lanes.
"""

from __future__ import annotations

from collections import namedtuple

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import as_float32, as_int32, shift
from logitsieve.kernels.topk.descriptor import DIM, widen_hidden

BLOCK = LANES  # ids whose least noise has a number of its own

# Pointers to float64 rows of hidden [B, padded D], logits [B, S] and weights [S], to float32
# weights [S] and the largest of each block, and room for lists of blocks and of ids.
Rooms = namedtuple("Rooms", "wide logits weights drawn heaviest blocks listed")


@inline
def race_room(block, dim, size):
    """float64 values of scratch for `rooms_at`."""
    return block * (padded(dim) + size) + 2 * size + 2 * LANES + padded(size // BLOCK)


@inline
def rooms_at(scratch, block, dim, size):
    """Room for `block` rows of hidden of that size and their logits, and for one race."""
    logits = shift(scratch, block * padded(dim))
    weights = shift(logits, block * size)
    drawn = as_float32(shift(weights, size))
    heaviest = shift(drawn, size)
    blocks = as_int32(shift(heaviest, padded(size // BLOCK)))
    listed = shift(blocks, padded(size // BLOCK) + LANES)
    return Rooms(scratch, logits, weights, drawn, heaviest, blocks, listed)


@inline
def widen_rows(descriptor, hidden, wide, count):
    """Widen so many rows of hidden; -1, or the first that cannot be answered."""
    dim = descriptor[DIM]
    for q in range(count):
        h = row_of(hidden, q, dim)
        if widen_hidden(descriptor, h, row_of(wide, q, padded(dim))) < 0:
            return q
    return -1
