"""Draws within a leaf of the kernel tree, by the logits of its classes as they are now.

The weights inside a leaf need no kernel: a leaf is small, and its logits cost less than features.

Shape letters: V classes, D their size, n classes a leaf, Q queries, M draws of each.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, sqrt

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import keep_alive, pointer
from logitsieve.training.kernels.tree import dot32, log_of

Leaf = namedtuple("Leaf", "dim normalize absolute")


@inline
def _logit(row, hidden, leaf):
    """h.w, or h.w / |w| of rows that are to be normalised."""
    x = dot32(row, hidden, leaf.dim)
    if leaf.normalize:
        norm = sqrt(dot32(row, row, leaf.dim))
        x = x / norm if norm > 0 else 0.0
    return abs(x) if leaf.absolute else x


@inline
def _fill_masses(leaf, rows, hidden, excluded, x0, x1, first, count, masses):
    """masses[:count] = e^(x - the largest x) of a leaf's classes, 0 for the excluded; their sum."""
    most, total = -np.inf, 0.0
    for j in range(count):
        masses[j] = _logit(row_of(rows, j, leaf.dim), hidden, leaf)
    for i in range(x0, x1):
        if first <= excluded[i] < first + count:
            masses[excluded[i] - first] = -np.inf
    for j in range(count):
        most = max(most, masses[j])
    for j in range(count):
        masses[j] = exp(masses[j] - most)
        total += masses[j]
    return total


@inline
def _draw(masses, count, target):
    """The first place at which the sum of masses exceeds `target`, else the last with any mass."""
    last = 0
    for j in range(count):
        if masses[j] > 0:
            last = j
            target -= masses[j]
            if target < 0:
                break
    return last


@kernel(
    "(float32[:,::1], int64[:,::1], int64, int64, boolean, boolean, float32[:,::1], int64[::1],"
    " int64[::1], boolean, float64[:,::1], int64[:,::1], int64[:,::1], float64[:,::1])"
)
def draw_in_leaves(
    matrix: Float32, starts: Int64, classes: int, per_leaf: int, normalize: bool, absolute: bool,
    hidden: Float32, offsets: Int64, excluded: Int64, given: bool, uniforms: Float64,
    leaves: Int64, ids: Int64, log_q: Float64,
) -> None:  # fmt: skip
    """Fill ids [Q, M] within leaves [Q, M] by e^logit of hidden [Q, D]; add to log_q [Q, M].

    The rows of a leaf begin at row starts [Q, M] of matrix [., D]. A logit is h.w, with `normalize`
    h.w / |w|, with `absolute` the absolute value of that. Equal leaves of a query lie side by side;
    -1 gives id -1. With `given`, the ids are read and `uniforms` [Q, M] are not. Excluded: as for
    `descend`.
    """
    draws, dim = leaves.shape[1], hidden.shape[1]
    scratch = np.empty(per_leaf)
    masses, leaf = pointer(scratch), Leaf(dim, normalize, absolute)
    for r in range(leaves.shape[0]):
        query, done, total, count = row_of(pointer(hidden), r, dim), -1, 1.0, 0
        for i in range(draws):
            first = leaves[r, i] * per_leaf
            if first < 0:
                ids[r, i] = -1
                continue
            if leaves[r, i] != done:
                done, count = leaves[r, i], min(per_leaf, classes - first)
                rows = row_of(pointer(matrix), starts[r, i], dim)
                total = _fill_masses(
                    leaf, rows, query, pointer(excluded), offsets[r], offsets[r + 1],
                    first, count, masses,
                )  # fmt: skip
            if not given:
                ids[r, i] = first + _draw(masses, count, uniforms[r, i] * total)
            log_q[r, i] += log_of(masses[ids[r, i] - first] / total)
    keep_alive(scratch)
