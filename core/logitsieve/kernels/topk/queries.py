"""Queries: rows of hidden at work, each with its float64 copy and its running top k.

Shape letters: Q queries, D hidden size, K answers.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.dots import padded, row_of, widen_row
from logitsieve.kernels.simd.pointers import shift
from logitsieve.kernels.topk.descriptor import DIM, admissible, slack_at
from logitsieve.kernels.topk.heap import sort_best_first

AT_ONCE = 64  # queries that share one pass over a matrix
SCRATCH = 1 << 22  # float64 values that the scratch of several queries may take

SIZE, CUT, SLACK, NORM = range(4)
STATE = 4

CHUNK = 256  # float32 logits of one query at a time; four queries at once have four times as many

# Pointers to hidden float32 [Q, D], wide float64 [Q, padded D], states float64 [Q, 4], and the
# heaps: values float64 [Q, K] and kept int32 [Q, K] (row numbers), and room for float32 logits
# [4, CHUNK]. `distinct`: rows may be offered twice, and must be kept once.
Queries = namedtuple("Queries", "hidden wide states values kept logits limit distinct")


@inline
def at_once(rows, dim, limit):
    """How many of `rows` queries to answer together so that their scratch stays small."""
    return max(1, min(rows, AT_ONCE, SCRATCH // (padded(dim) + limit)))


@inline
def widen_queries(record, queries, count):
    """Widen the rows and note their norms; -1, or the first row that cannot be answered."""
    dim = record[DIM]
    for q in range(count):
        wide = row_of(queries.wide, q, padded(dim))
        norm = np.sqrt(widen_row(row_of(queries.hidden, q, dim), wide, dim))
        if not admissible(record, 0, norm):
            return q
        queries.states[STATE * q + NORM] = norm
    return -1


@inline
def empty_heaps(record, place, queries, count):
    """Start afresh on the matrix whose record is at `place`."""
    for q in range(count):
        state = shift(queries.states, STATE * q)
        state[SIZE], state[CUT] = 0.0, -np.inf
        state[SLACK] = slack_at(record, place, state[NORM])


@inline
def write_answers(queries, q, logits):
    """Sort query q's heap best first and round its values; how many there are."""
    size = int(queries.states[STATE * q + SIZE])
    place = q * queries.limit
    values = shift(queries.values, place)
    sort_best_first(values, shift(queries.kept, place), size)
    for i in range(size):
        logits[place + i] = np.float32(values[i])
    return size
