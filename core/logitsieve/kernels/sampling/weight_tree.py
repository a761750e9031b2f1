"""Weights with their sums, so that one is found by its share of the whole in few steps.

Sums of 64 weights are tiles, and of 64 tiles blocks: V / 4096 + 128 steps. A changed weight has its
two sums added up anew, never corrected by a difference, so that no error gathers.

Shape letters: V weights, a multiple of BLOCK.
"""

from __future__ import annotations

from collections import namedtuple

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    multiply_add,
    pair_sum,
    splat64,
    widen,
    zeros64,
)

TILE = 64
BLOCK = TILE * TILE

# Pointers to weights float32 [V], tiles float64 [V / 64], blocks float64 [V / 4096].
WeightTree = namedtuple("WeightTree", "weights tiles blocks size")


@inline
def sum_all(tree):
    """Add up every tile and block."""
    for place in range(0, tree.size, TILE):
        _add_tile(tree, place // TILE)
    for block in range(tree.size // BLOCK):
        _add_block(tree, block)


@inline
def sum_again(tree, place):
    """Add up what the weight at `place` is part of, once it has changed."""
    _add_tile(tree, place // TILE)
    _add_block(tree, place // BLOCK)


@inline
def total_weight(tree):
    total = 0.0
    for block in range(tree.size // BLOCK):
        total += tree.blocks[block]
    return total


@inline
def find_share(tree, target):
    """The first place up to which the weights exceed `target`, 0 <= target < their sum.

    Rounding may lead to a neighbour, whose weight may be 0.
    """
    block, left = _step(tree.blocks, 0, tree.size // BLOCK, target)
    first = block * TILE
    tile, left = _step(tree.tiles, first, first + TILE, left)
    return _step(tree.weights, tile * TILE, (tile + 1) * TILE, left)[0]


@inline
def _step(values, first, end, target):
    """(The first place of first .. end-1 up to which the values exceed `target`, or the last; what
    the values before it leave of the target)."""
    before, place = 0.0, first
    while place < end - 1:
        total = before + float(values[place])
        if total > target:
            break
        before = total
        place += 1
    return place, target - before


@inline
def _add_tile(tree, tile):
    total = zeros64()
    for place in range(tile * TILE, (tile + 1) * TILE, LANES):
        total = multiply_add(widen(load(tree.weights, place)), splat64(1.0), total)
    tree.tiles[tile] = pair_sum(total)


@inline
def _add_block(tree, block):
    total = zeros64()
    for tile in range(block * TILE, (block + 1) * TILE, LANES):
        total = multiply_add(load(tree.tiles, tile), splat64(1.0), total)
    tree.blocks[block] = pair_sum(total)
