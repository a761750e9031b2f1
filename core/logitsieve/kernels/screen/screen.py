"""Top k of a learned screen: route each row to its best clusters, then scan their candidate lists.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, C clusters, P probes.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.screen.clusters import PROBES, SHARED, SKETCH, route_queries
from logitsieve.kernels.screen.lists import (
    grouping_room,
    lists_at,
    lists_length,
    scan_grouped,
    scan_lists,
    scan_prescreened,
    unite,
)
from logitsieve.kernels.screen.prescreen import filter_room
from logitsieve.kernels.simd.dots import padded, row_of, widen_row
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.topk.descriptor import DIM, RECORD, ROWS, matrix_at
from logitsieve.kernels.topk.gather import fill_logits
from logitsieve.kernels.topk.queries import (
    CHUNK,
    STATE,
    Queries,
    at_once,
    empty_heaps,
    widen_queries,
    write_answers,
)

FEW = 4  # queries fewer than these are not grouped by cluster


@inline
def _spare(record):
    """float64 values of scratch, for float32 logits of rows or for routing one query."""
    routing = (record[RECORD + ROWS] + LANES) // 2 + padded(record[RECORD + DIM])
    if record[SKETCH] != 0:
        routing = max(routing, CHUNK // 2 + filter_room(int64_pointer(record[SKETCH])))
    return max(2 * CHUNK, routing)


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def screen_topk(
    address: int,
    hidden: Float32,
    ids: Int32,
    logits: Float32,
    scanned: Int32,
    start: int,
    stop: int,
) -> int:
    """Fill ids and logits [B, K] and scanned [B] for rows start .. stop-1 of hidden [B, D].

    `address` is the record's. A row whose clusters hold fewer than K distinct candidates gets
    scanned = -1 and no answer. Returns how many such rows there are, or -1 - r where row r is not
    finite or too large.
    """
    record = int64_pointer(address)
    limit, dim, probes = ids.shape[1], hidden.shape[1], record[PROBES]
    block = at_once(stop - start, dim, limit)
    spared = _spare(record)
    grouped = grouping_room(record, block * probes) // 2 + 1 if block >= FEW else 0
    size = block * (padded(dim) + STATE + limit + 2 * probes) + spared + grouped
    scratch = np.empty(size, np.float64)
    wide = pointer(scratch)
    states = shift(wide, block * padded(dim))
    values = shift(states, block * STATE)
    route_values = shift(values, block * limit)
    routed = shift(route_values, block * probes)
    spare = as_float32(shift(routed, block * probes))
    grouping = as_int32(shift(routed, block * probes + spared))
    lists, unfilled = lists_at(record), 0
    shared = probes > 1 and record[SHARED] != 0
    for first in range(start, stop, block):
        count = min(stop - first, block)
        rows = row_of(pointer(hidden), first, dim)
        kept = row_of(pointer(ids), first, limit)
        routes = Queries(rows, wide, states, route_values, as_int32(routed), spare, probes, False)
        queries = Queries(rows, wide, states, values, kept, spare, limit, shared)
        bad = widen_queries(record, queries, count)
        if bad >= 0:
            unfilled = -1 - first - bad
            break
        route_queries(record, routes, count)
        empty_heaps(record, 0, queries, count)
        if record[SKETCH] != 0:
            sketch, found = int64_pointer(record[SKETCH]), shift(pointer(scanned), first)
            scan_prescreened(sketch, lists, routes, queries, count, found)
        elif count < FEW:
            scan_lists(matrix_at(record, 0), lists, routes, queries, count)
        else:
            scan_grouped(record, lists, routes, queries, count, grouping)
        for q in range(count):
            size = write_answers(queries, q, row_of(pointer(logits), first, limit))
            if size < limit:
                scanned[first + q] = -1
            elif record[SKETCH] == 0:
                scanned[first + q] = lists_length(lists, shift(routes.kept, q * probes), probes)
            unfilled += size < limit
    keep_alive(scratch)
    return unfilled


@kernel("(int64, float32[:,::1], int64)")
def screen_candidates(
    address: int, hidden: Float32, least: int
) -> tuple[int, Int64, Int32, Float32]:
    """The distinct candidates of each row of hidden [B, D] with their exact logits, as CSR.

    `address` is the record's. Returns (status, offsets [B+1], ids, logits); the status is how many
    rows have fewer than `least` candidates, or -1 - r where row r is not finite or too large.
    """
    record = int64_pointer(address)
    rows, dim = hidden.shape
    matrix, lists, probes = matrix_at(record, 0), lists_at(record), record[PROBES]
    scratch = np.empty(padded(dim) + STATE + 2 * probes + _spare(record), np.float64)
    wide = pointer(scratch)
    states = shift(wide, padded(dim))
    values = shift(states, STATE)
    clusters = np.empty(rows * probes, np.int32)
    offsets, room, status, one = np.empty(rows + 1, np.int64), 0, 0, np.int64(1)
    offsets[0] = 0
    shared = probes > 1 and record[SHARED] != 0
    for row in range(rows):
        here, kept = row_of(pointer(hidden), row, dim), row_of(pointer(clusters), row, probes)
        spare = as_float32(shift(values, 2 * probes))
        routes = Queries(here, wide, states, values, kept, spare, probes, False)
        if widen_queries(record, routes, one) >= 0:
            room, rows, status = 0, 0, -1 - row
            break
        route_queries(record, routes, one)
        room += lists_length(lists, kept, probes)
    ids, logits = np.empty(room, np.int32), np.empty(room, np.float32)
    for row in range(rows):
        begin = offsets[row]
        own = row_of(pointer(clusters), row, probes)
        end = begin + unite(lists, own, probes, shared, shift(pointer(ids), begin))
        widen_row(row_of(pointer(hidden), row, dim), wide, dim)
        fill_logits(matrix, wide, ids, begin, end, logits)
        offsets[row + 1] = end
        status += end - begin < least
    keep_alive(scratch)
    keep_alive(clusters)
    return status, offsets, ids[: offsets[rows]], logits[: offsets[rows]]
