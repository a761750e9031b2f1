"""A binary tree over the classes that draws in proportion to a kernel.

Blanc, Rendle 2018, section 3.2: for a kernel phi(h).phi(c), the mass of a set of classes is
phi(h).S, where S is the sum of phi over the set.

Nodes are numbered as in a heap: leaf l is node L + l and has the classes l n .. (l + 1) n - 1. Row
i of `sums` [L, F] is the sum of phi over the *left* child of node i, row 0 over all classes.

A partial sum of random features can be negative, so a child's mass is max(phi.S, floor * classes),
or 0 if it has no classes. log q is the probability by these masses.

Shape letters: F features, L leaves (a power of two), n classes a leaf, N rows to add.
"""

from __future__ import annotations

from collections import namedtuple
from math import log

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.lanes import (
    LANES,
    lane_sums,
    load,
    load_first,
    multiply_add,
    splat32,
    store,
    zeros32,
)
from logitsieve.kernels.simd.pointers import pointer

ONE = np.float32(1)
DEEPEST = 64

Tree = namedtuple("Tree", "sums leaves size classes per_leaf")  # sums: a pointer


@inline
def dot32(a, b, size):
    s0, s1, s2, s3 = zeros32(), zeros32(), zeros32(), zeros32()
    full = size - size % LANES
    fours = size - size % (4 * LANES)
    for d in range(0, fours, 4 * LANES):
        s0 = multiply_add(load(a, d), load(b, d), s0)
        s1 = multiply_add(load(a, d + LANES), load(b, d + LANES), s1)
        s2 = multiply_add(load(a, d + 2 * LANES), load(b, d + 2 * LANES), s2)
        s3 = multiply_add(load(a, d + 3 * LANES), load(b, d + 3 * LANES), s3)
    for d in range(fours, full, LANES):
        s0 = multiply_add(load(a, d), load(b, d), s0)
    if full < size:
        rest = size - full
        s1 = multiply_add(load_first(a, full, rest), load_first(b, full, rest), s1)
    sums = lane_sums((s0, s1, s2, s3))
    return float(sums[0]) + float(sums[1]) + float(sums[2]) + float(sums[3])


@inline
def add32(target, values, size):
    full = size - size % LANES
    for d in range(0, full, LANES):
        store(target, d, multiply_add(load(values, d), splat32(ONE), load(target, d)))
    for d in range(full, size):
        target[d] += values[d]


@inline
def _split(tree, query, floor, first, span, dot):
    """Return the masses of a node's children, and phi.S of the left one; dot is the node's."""
    node = (tree.leaves + first) // span
    c0 = min(first * tree.per_leaf, tree.classes)
    c1 = min((first + span // 2) * tree.per_leaf, tree.classes)
    c2 = min((first + span) * tree.per_leaf, tree.classes)
    dot_left = dot32(query, row_of(tree.sums, node, tree.size), tree.size)
    left = max(dot_left, floor * (c1 - c0)) if c1 > c0 else 0.0
    right = max(dot - dot_left, floor * (c2 - c1)) if c2 > c1 else 0.0
    return left, right, dot_left


@inline
def _push(places, shares, top, first, span, a, b, low, high, dot, log_p):
    places[top, 0], places[top, 1], places[top, 2], places[top, 3] = first, span, a, b
    shares[top, 0], shares[top, 1], shares[top, 2], shares[top, 3] = low, high, dot, log_p
    return top + 1


@kernel(
    "(float32[:,::1], int64, int64, float32[::1], float64, float64[::1], int64[::1], float64[::1])"
)
def descend(
    sums: Float32, classes: int, per_leaf: int, phi: Float32, floor: float, uniforms: Float64,
    leaves: Int64, log_q: Float64,
) -> None:  # fmt: skip
    """Fill leaves [M] with draws for the query phi [F], and log_q [M] with their log-probabilities.

    A class has at least the mass `floor`. uniforms [M] ascend, and so do the leaves. Each node is
    visited at most once: O(F log L) per draw.
    """
    count, size = sums.shape
    query, tree = pointer(phi), Tree(pointer(sums), count, size, classes, per_leaf)
    places, shares = np.empty((DEEPEST, 4), np.int64), np.empty((DEEPEST, 4))
    dot = dot32(query, tree.sums, size)
    top = _push(places, shares, 0, 0, count, 0, leaves.size, 0.0, 1.0, dot, 0.0)
    while top > 0:
        top -= 1
        first, span, a, b = places[top, 0], places[top, 1], places[top, 2], places[top, 3]
        low, high, dot, log_p = shares[top, 0], shares[top, 1], shares[top, 2], shares[top, 3]
        if span == 1:
            for i in range(a, b):
                leaves[i], log_q[i] = first, log_p
            continue
        left, right, dot_left = _split(tree, query, floor, first, span, dot)
        mass, half = left + right, span // 2
        # No draw may go to a side without classes, not even by rounding.
        split = high if right == 0 else low + (high - low) * (left / mass)
        c = a
        while c < b and uniforms[c] < split:
            c += 1
        if c < b:
            top = _push(
                places, shares, top, first + half, half, c, b, split, high, dot - dot_left,
                log_p + log(right / mass),
            )  # fmt: skip
        if a < c:
            top = _push(
                places, shares, top, first, half, a, c, low, split, dot_left,
                log_p + log(left / mass),
            )  # fmt: skip


@inline
def _merge_equal(nodes, count, sums, places, size):
    left = 0
    for i in range(count):
        if left and nodes[left - 1] == nodes[i]:
            add32(row_of(sums, places[left - 1], size), row_of(sums, places[i], size), size)
        else:
            nodes[left], places[left] = nodes[i], places[i]
            left += 1
    return left


@kernel("(float32[:,::1], int64[::1], float32[:,::1])")
def add_to_paths(sums: Float32, leaves: Int64, changes: Float32) -> None:
    """Add changes [N, F] (overwritten) of ascending leaves [N] to all sums above them."""
    count, size = sums.shape
    nodes, places = leaves + count, np.arange(leaves.size)
    tree, values, left = pointer(sums), pointer(changes), leaves.size
    left = _merge_equal(nodes, left, values, places, size)
    while left > 0 and nodes[0] > 1:
        for i in range(left):
            if nodes[i] % 2 == 0:
                change = row_of(values, places[i], size)
                add32(row_of(tree, nodes[i] // 2, size), change, size)
            nodes[i] //= 2
        left = _merge_equal(nodes, left, values, places, size)
    if left > 0:
        add32(tree, row_of(values, places[0], size), size)
