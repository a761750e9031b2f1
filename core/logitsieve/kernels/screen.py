"""Top k of a learned screen: route each row to its best clusters, then scan their candidate lists.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, C clusters, P probes, Q queries
answered together.

A screen's record is that of W, that of the centroids (with a bias of zeros), then the addresses of
the lists: offsets int32 [C+1] and row ids int32 [offsets[C]].
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.dots import padded, row_of
from logitsieve.kernels.lanes import int32_pointer, keep_alive, pointer, shift
from logitsieve.kernels.queries import (
    STATE,
    Queries,
    at_once,
    empty_heaps,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.record import RECORD, ROWS, matrix_at, matrix_record
from logitsieve.kernels.scan import scan_all, scan_four, scan_one
from logitsieve.types.results import Float32, Int32, Int64

OFFSETS, IDS = 2 * RECORD, 2 * RECORD + 1


def screen_record(
    softmax_record: Int64, centroids: Float32, zeros: Float32, offsets: Int32, ids: Int32
) -> Int64:
    """The record of a screen over the softmax of `softmax_record`; `zeros` is float32 [C]."""
    lists = np.array([offsets.ctypes.data, ids.ctypes.data], np.int64)
    return np.concatenate([softmax_record, matrix_record(centroids, zeros), lists])


@kernel(
    "(int64[::1], float32[:,::1], int64, int32[:,::1], float32[:,::1], int32[::1], int64, int64)"
)
def screen_topk(
    record: Int64,
    hidden: Float32,
    probes: int,
    ids: Int32,
    logits: Float32,
    scanned: Int32,
    start: int,
    stop: int,
) -> int:
    """Fill ids and logits [B, K] and scanned [B] for rows start .. stop-1 of hidden [B, D].

    A row whose clusters hold fewer than K distinct candidates gets scanned = -1 and no answer.
    Returns how many such rows there are, or -1 - r where row r is not finite or too large.
    """
    limit, dim = ids.shape[1], hidden.shape[1]
    block = at_once(stop - start, dim, limit)
    wide = block * padded(dim)
    scratch = np.empty(wide + block * (STATE + limit + probes), np.float64)
    clusters = np.empty((block, probes), np.int32)
    unfilled = 0
    for first in range(start, stop, block):
        count = min(stop - first, block)
        rows, floats = row_of(pointer(hidden), first, dim), pointer(scratch)
        states, values = shift(floats, wide), shift(floats, wide + block * STATE)
        routes = Queries(
            rows, floats, states, shift(values, block * limit), pointer(clusters), probes, False
        )
        kept = row_of(pointer(ids), first, limit)
        queries = Queries(rows, floats, states, values, kept, limit, probes > 1)
        bad = widen_queries(record, queries, count)
        if bad >= 0:
            unfilled = -1 - first - bad
            break
        empty_heaps(record, RECORD, routes, count)
        scan_all(matrix_at(record, RECORD), routes, count)
        empty_heaps(record, 0, queries, count)
        if count < 4:
            _scan_lists(record, clusters, queries, count)
        else:
            _scan_grouped(record, clusters, queries, count)
        offsets = int32_pointer(record[OFFSETS])
        for q in range(count):
            size = write_answers(queries, q, row_of(pointer(logits), first, limit))
            scanned[first + q] = _length(offsets, clusters[q]) if size == limit else -1
            unfilled += size < limit
    keep_alive(scratch)
    return unfilled


@inline
def _length(offsets, clusters):
    total = 0
    for cluster in clusters:
        total += offsets[cluster + 1] - offsets[cluster]
    return total


@inline
def _scan_lists(record, clusters, queries, count):
    offsets, lists = int32_pointer(record[OFFSETS]), int32_pointer(record[IDS])
    matrix = matrix_at(record, 0)
    for q in range(count):
        for cluster in clusters[q]:
            scan_one(matrix, True, lists, offsets[cluster], offsets[cluster + 1], queries, q)


@inline
def _scan_grouped(record, clusters, queries, count):
    """Queries of the same cluster go through its list four at a time."""
    offsets, lists = int32_pointer(record[OFFSETS]), int32_pointer(record[IDS])
    matrix = matrix_at(record, 0)
    ends = np.zeros(record[RECORD + ROWS] + 1, np.int64)
    order = np.empty(clusters.size, np.int64)
    _group(clusters, count, ends, order)
    begin = 0
    for cluster in range(record[RECORD + ROWS]):
        end = ends[cluster]
        first, last = offsets[cluster], offsets[cluster + 1]
        fours = begin + (end - begin) // 4 * 4
        for i in range(begin, fours, 4):
            q0, q1, q2, q3 = order[i], order[i + 1], order[i + 2], order[i + 3]
            scan_four(matrix, True, lists, first, last, queries, q0, q1, q2, q3)
        for i in range(fours, end):
            scan_one(matrix, True, lists, first, last, queries, order[i])
        begin = end


@inline
def _group(clusters, count, ends, order):
    """Counting sort: cluster c owns order[ends[c-1]:ends[c]], the queries routed to it."""
    for q in range(count):
        for cluster in clusters[q]:
            ends[cluster + 1] += 1
    for cluster in range(1, ends.size):
        ends[cluster] += ends[cluster - 1]
    for q in range(count):
        for cluster in clusters[q]:
            order[ends[cluster]] = q
            ends[cluster] += 1


@kernel("(int64[::1], float32[:,::1], int64, int64[::1], int32[::1])")
def screen_lists(record: Int64, hidden: Float32, probes: int, offsets: Int64, ids: Int32) -> int:
    """The distinct candidates of each row of hidden [B, D], in ascending order.

    With an empty `ids`, offsets[r+1] becomes how many row r has; else they are written to
    ids[offsets[r]:offsets[r+1]]. Returns -1, or the first row that is not finite or too large.
    """
    rows, dim = hidden.shape
    scratch = np.empty(padded(dim) + STATE + probes, np.float64)
    clusters = np.empty((1, probes), np.int32)
    starts, lists = int32_pointer(record[OFFSETS]), int32_pointer(record[IDS])
    bad = -1
    for row in range(rows):
        floats = pointer(scratch)
        states = shift(floats, padded(dim))
        values = shift(floats, padded(dim) + STATE)
        here = row_of(pointer(hidden), row, dim)
        routes = Queries(here, floats, states, values, pointer(clusters), probes, False)
        if widen_queries(record, routes, 1) >= 0:
            bad = row
            break
        empty_heaps(record, RECORD, routes, 1)
        scan_all(matrix_at(record, RECORD), routes, 1)
        united = _united(starts, lists, clusters[0])
        if ids.size:
            ids[offsets[row] : offsets[row + 1]] = united
        else:
            offsets[row + 1] = united.size
    keep_alive(scratch)
    return bad


@inline
def _united(starts, lists, clusters):
    """The sorted union of the clusters' lists."""
    every = np.empty(_length(starts, clusters), np.int32)
    size = 0
    for cluster in clusters:
        for i in range(starts[cluster], starts[cluster + 1]):
            every[size] = lists[i]
            size += 1
    every.sort()
    distinct = 0
    for i in range(size):
        if i == 0 or every[i] != every[distinct - 1]:
            every[distinct] = every[i]
            distinct += 1
    return every[:distinct]
