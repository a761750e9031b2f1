"""Streaming top-k of rows of a matrix: float32 dots choose, `dot64` decides.

A float32 dot of D terms, summed in any order, is within gamma_D ||w|| ||h|| of the true one. Once k
answers are kept and the worst of them is x, a row whose float32 logit is below x - slack cannot be
among the k best. All others are evaluated by `dot64` and offered to the heap. So the answer is that
of `dot64` over all rows scanned, in whatever order they come and however rows are grouped.
"""

from __future__ import annotations

from logitsieve.kernels.compile import inline
from logitsieve.kernels.dots import dot64, dots_1x4, dots_4x4, padded, row_of
from logitsieve.kernels.heap import contains, offer
from logitsieve.kernels.lanes import shift
from logitsieve.kernels.queries import CUT, SIZE, SLACK, STATE

TILE_BYTES = 32 * 1024  # of a matrix, reused from the L1 cache by every four queries


@inline
def decide(matrix, queries, q, row):
    """Evaluate one row by `dot64` for query q and offer it to its heap."""
    wide = row_of(queries.wide, q, padded(matrix.dim))
    value = dot64(row_of(matrix.weight, row, matrix.dim), wide, matrix.dim) + matrix.bias[row]
    state, limit = shift(queries.states, STATE * q), queries.limit
    values, kept = shift(queries.values, q * limit), shift(queries.kept, q * limit)
    size = int(state[SIZE])
    if queries.distinct and contains(kept, size, row):
        return
    size = offer(values, kept, size, limit, value, row)
    state[SIZE] = size
    if size == limit:
        state[CUT] = values[0] - state[SLACK]


@inline
def _consider(matrix, queries, q, row, dot):
    # Written so that a NaN would be evaluated, not dropped.
    if not (dot + float(matrix.bias[row]) < queries.states[STATE * q + CUT]):
        decide(matrix, queries, q, row)


@inline
def _row(listed, ids, i):
    return int(ids[i]) if listed else i


@inline
def scan_one(matrix, listed, ids, first, last, queries, q):
    """Offer rows first .. last-1 (or the rows ids[first:last], if `listed`) to query q."""
    dim = matrix.dim
    hidden = row_of(queries.hidden, q, dim)
    whole = first + (last - first) // 4 * 4
    for i in range(first, whole, 4):
        a, b = _row(listed, ids, i), _row(listed, ids, i + 1)
        c, e = _row(listed, ids, i + 2), _row(listed, ids, i + 3)
        dots = dots_1x4(matrix.weight, a * dim, b * dim, c * dim, e * dim, hidden, dim)
        _consider(matrix, queries, q, a, dots[0])
        _consider(matrix, queries, q, b, dots[1])
        _consider(matrix, queries, q, c, dots[2])
        _consider(matrix, queries, q, e, dots[3])
    for i in range(whole, last):
        decide(matrix, queries, q, _row(listed, ids, i))


@inline
def _consider_four(matrix, queries, q0, q1, q2, q3, row, dots):
    _consider(matrix, queries, q0, row, dots[0])
    _consider(matrix, queries, q1, row, dots[1])
    _consider(matrix, queries, q2, row, dots[2])
    _consider(matrix, queries, q3, row, dots[3])


@inline
def scan_four(matrix, listed, ids, first, last, queries, q0, q1, q2, q3):
    """As `scan_one` for four queries, which share every load of a row."""
    dim, H = matrix.dim, queries.hidden
    whole = first + (last - first) // 4 * 4
    for i in range(first, whole, 4):
        a, b = _row(listed, ids, i), _row(listed, ids, i + 1)
        c, e = _row(listed, ids, i + 2), _row(listed, ids, i + 3)
        dots = dots_4x4(
            matrix.weight, a * dim, b * dim, c * dim, e * dim,
            H, q0 * dim, q1 * dim, q2 * dim, q3 * dim, dim,
        )  # fmt: skip
        _consider_four(matrix, queries, q0, q1, q2, q3, a, dots[0])
        _consider_four(matrix, queries, q0, q1, q2, q3, b, dots[1])
        _consider_four(matrix, queries, q0, q1, q2, q3, c, dots[2])
        _consider_four(matrix, queries, q0, q1, q2, q3, e, dots[3])
    for i in range(whole, last):
        row = _row(listed, ids, i)
        decide(matrix, queries, q0, row)
        decide(matrix, queries, q1, row)
        decide(matrix, queries, q2, row)
        decide(matrix, queries, q3, row)


@inline
def scan_all(matrix, queries, count):
    """Offer every row of the matrix to every query, a tile of rows at a time."""
    tile = max(8, TILE_BYTES // (4 * matrix.dim) // 4 * 4) if count > 1 else matrix.rows
    fours = count // 4 * 4
    for first in range(0, matrix.rows, tile):
        last = min(matrix.rows, first + tile)
        for q in range(0, fours, 4):
            scan_four(matrix, False, queries.kept, first, last, queries, q, q + 1, q + 2, q + 3)
        for q in range(fours, count):
            scan_one(matrix, False, queries.kept, first, last, queries, q)
