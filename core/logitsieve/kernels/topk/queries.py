"""Queries: rows of hidden with their scratch and running top k."""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.rows.functions import CODED
from logitsieve.kernels.rows.products import codes_size, encode_words
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import as_float32, as_int32, shift
from logitsieve.kernels.topk.allowed import allowed_at
from logitsieve.kernels.topk.descriptor import (
    DIM,
    KIND,
    NORM_SPARE,
    coded_slack_at,
    slack_at,
    widen_hidden,
)
from logitsieve.kernels.topk.heap import sort_best_first

QUERIES_AT_ONCE = 64  # share one pass over a matrix
SCRATCH = 1 << 22  # float64 values for several queries

# OFF is ||h - g|| if W has codes. SUMMED is 0 or a scale: then TOTAL sums e^{scale (logit - MOST)}
# of scanned and estimated rows, and VARIANCE these of estimated rows times the logit's variance.
# Rows with logits below FLOOR may be left out.
SIZE, THRESHOLD, SLACK, NORM, OFF, SUMMED, MOST, TOTAL, VARIANCE, FLOOR = range(10)
STATE = 10
SUMS = 3  # from MOST on

CHUNK = 256  # float32 logits of a query at once
LOGITS = 2 * CHUNK + CHUNK // 2  # scratch for four queries' logits, and ids, in float64 values

# Pointers to hidden float32 [Q, D], wide float64 [Q, padded D], codes for rows of codes, states
# float64 [Q, STATE], the heaps' values float64 and ids int32 [Q, K], float32 logits [4, CHUNK], and
# int32 ids `picked` [CHUNK]. With `distinct`, a row that is offered twice is kept once.
Queries = namedtuple(
    "Queries", "hidden wide codes states values kept logits picked limit distinct allowed"
)


@inline
def query_size(dim, limit):
    return padded(dim) + codes_size(dim) + STATE + limit


@inline
def queries_at(scratch, block, hidden, kept, dim, limit, distinct, allowed):
    codes = shift(scratch, block * padded(dim))
    states = shift(codes, block * codes_size(dim))
    values = shift(states, block * STATE)
    logits = as_float32(shift(values, block * limit))
    return Queries(
        hidden, scratch, as_float32(codes), states, values, kept, logits,
        as_int32(shift(logits, 4 * CHUNK)), limit, distinct, allowed,
    )  # fmt: skip


@inline
def at_once(rows, size):
    return max(1, min(rows, QUERIES_AT_ONCE, SCRATCH // size))


@inline
def begin_block(descriptor, scratch, block, hidden, ids, first, count, limit, distinct):
    dim = descriptor[DIM]
    rows, own_ids = row_of(hidden, first, dim), row_of(ids, first, limit)
    allowed = allowed_at(descriptor, first)
    queries = queries_at(scratch, block, rows, own_ids, dim, limit, distinct, allowed)
    bad = widen_queries(descriptor, queries, count)
    if bad < 0:
        empty_heaps(descriptor, 0, queries, count)
    return queries, bad if bad < 0 else first + bad


@inline
def widen_queries(descriptor, queries, count):
    dim = descriptor[DIM]
    for q in range(count):
        h, wide = row_of(queries.hidden, q, dim), row_of(queries.wide, q, padded(dim))
        norm = widen_hidden(descriptor, h, wide)
        if norm < 0:
            return q
        queries.states[STATE * q + NORM] = norm
        if descriptor[KIND] >= CODED:
            errors = encode_words(h, dim, codes_of(queries, q, dim))
            queries.states[STATE * q + OFF] = np.sqrt(errors) * NORM_SPARE
    return -1


@inline
def codes_of(queries, q, dim):
    return row_of(queries.codes, q, 2 * codes_size(dim))


@inline
def empty_heaps(descriptor, place, queries, count):
    for q in range(count):
        state = shift(queries.states, STATE * q)
        state[SIZE], state[THRESHOLD] = 0.0, -np.inf
        state[SUMMED], state[MOST], state[TOTAL], state[VARIANCE] = 0.0, -np.inf, 0.0, 0.0
        state[FLOOR] = -np.inf
        state[SLACK] = slack_at(descriptor, place, state[NORM])
        if descriptor[place + KIND] >= CODED:  # rows are multiplied with codes or with floats
            coded = coded_slack_at(descriptor, place, state[NORM], state[OFF])
            state[SLACK] = max(state[SLACK], coded)


@inline
def write_answers(queries, q, logits):
    size = int(queries.states[STATE * q + SIZE])
    place = q * queries.limit
    values = shift(queries.values, place)
    sort_best_first(values, shift(queries.kept, place), size)
    for i in range(size):
        logits[place + i] = np.float32(values[i])
    for i in range(place + size, place + queries.limit):
        logits[i], queries.kept[i] = np.float32(-np.inf), -1
    return size


@inline
def write64(queries, q, logits):
    """Write the answers of a query in float64, then ids of -1 and logits of -inf."""
    values, kept = shift(queries.values, q * queries.limit), shift(queries.kept, q * queries.limit)
    size = int(queries.states[STATE * q + SIZE])
    sort_best_first(values, kept, size)
    for i in range(size):
        logits[i] = values[i]
    for i in range(size, queries.limit):
        logits[i], kept[i] = -np.inf, -1
