"""A list scanned through the sketch: exact logits only of the rows whose bound leaves a doubt.

The answer is that of the whole list: a row is dropped only if k others of the list are proven to be
better. It pays where a row of W is many times as long as its codes.

Shape letters: D hidden size, K answers, T bytes of a row in `fine`.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_int32, shift
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    REFINED_ROOM,
    describe,
    query_room,
    refine,
    refined_at,
    rotated_room,
    sketch_at,
)
from logitsieve.kernels.sketch.thresholds import cut_of, take_best
from logitsieve.kernels.topk.descriptor import matrix_at
from logitsieve.kernels.topk.queries import CHUNK, NORM, SIZE, STATE
from logitsieve.kernels.topk.scan import LISTED, scan_one

# Scratch of one query: codes, factors, rotated coordinates; what refining a chunk of a list finds,
# and the ids [CHUNK] of it that are computed.
Filter = namedtuple("Filter", "planes factors rotated refined ids")


@inline
def filter_room(record):
    """float64 values of scratch for a Filter over the sketch of this record."""
    return query_room(record) + FACTORS + rotated_room(record) + REFINED_ROOM + CHUNK // 2


@inline
def filter_at(record, scratch):
    """The Filter in such scratch."""
    factors = shift(scratch, query_room(record))
    rotated = shift(factors, FACTORS)
    chunk = shift(rotated, rotated_room(record))
    return Filter(
        as_int8(scratch),
        factors,
        as_float32(rotated),
        refined_at(chunk),
        as_int32(shift(chunk, REFINED_ROOM)),
    )


@splice
def describe_query(record, filtered, queries, q):
    """What `scan_filtered` needs of query q."""
    norm = queries.states[STATE * q + NORM]
    h = row_of(queries.hidden, q, matrix_at(record, 0).dim)
    describe(record, h, norm, filtered.rotated, filtered.planes, filtered.factors)


@splice
def scan_filtered(record, filtered, ids, first, last, queries, q):
    """As `scan_one` of the rows ids[first:last] for query q, less those that cannot be kept.

    Returns how many rows were computed.
    """
    matrix, sketch, chosen = matrix_at(record, 0), sketch_at(record), filtered.ids
    state, computed, begin = shift(queries.states, STATE * q), 0, np.int64(0)
    estimates, uppers = filtered.refined.estimates, filtered.refined.uppers
    for start in range(first, last, CHUNK):
        count, here = min(CHUNK, last - start), shift(ids, start)
        refine(sketch, filtered.planes, filtered.factors, here, count, filtered.refined)
        if int(state[SIZE]) < queries.limit:
            seeds = take_best(estimates, uppers, here, count, queries.limit, chosen)
            scan_one(matrix, LISTED, chosen, begin, seeds, queries, q)
            computed += seeds
        cut, size = cut_of(queries, q, state, filtered.factors[MARGIN]), begin
        for i in range(count):
            chosen[size] = here[i]
            size += not uppers[i] < cut
        scan_one(matrix, LISTED, chosen, begin, size, queries, q)
        computed += size
    return computed
