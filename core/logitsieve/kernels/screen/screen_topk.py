"""Top k of a learned screen: route each row to its best clusters, then scan their lists.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, C clusters, P probes.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.screen.lists import (
    grouping_room,
    lists_at,
    lists_length,
    prescreen_room,
    scan_grouped,
    scan_lists,
    scan_prescreened,
    unite,
)
from logitsieve.kernels.screen.route import CENTROIDS, PROBES, SHARED, SKETCH, route_queries
from logitsieve.kernels.simd.dots import padded, row_of, widen_row
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import as_int32, int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import DIM, ROWS, fill_logits, matrix_at
from logitsieve.kernels.topk.queries import (
    CHUNK,
    LOGITS,
    Queries,
    at_once,
    empty_heaps,
    queries_at,
    query_room,
    widen_queries,
    write_answers,
)

FEW = 4  # queries fewer than these are not grouped by cluster


@inline
def _logits_room(descriptor):
    """Count float64 values of scratch for float32 logits, or to route or prescreen a query."""
    routing = (descriptor[CENTROIDS + ROWS] + LANES) // 2 + padded(descriptor[CENTROIDS + DIM])
    if descriptor[SKETCH] != 0:
        routing = max(routing, CHUNK // 2 + prescreen_room(int64_pointer(descriptor[SKETCH])))
    return max(LOGITS, routing)


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def screen_topk(address, hidden, ids, logits, scanned, start, stop):
    """Fill ids and logits [B, K] and scanned [B] for rows start .. stop-1 of hidden [B, D].

    `address` is the descriptor's. A row with fewer than K distinct candidates gets scanned = -1.
    Returns the number of such rows, or -1 - r if row r is not finite or too large.
    """
    descriptor = int64_pointer(address)
    limit, dim, probes = ids.shape[1], hidden.shape[1], descriptor[PROBES]
    each = query_room(dim, limit) + 2 * probes
    block, room = at_once(stop - start, each), _logits_room(descriptor)
    grouped = grouping_room(descriptor, block * probes) // 2 + 1 if block >= FEW else 0
    scratch = np.empty(block * each + room + grouped, np.float64)
    route_values = shift(pointer(scratch), block * query_room(dim, limit) + room)
    routed = as_int32(shift(route_values, block * probes))
    grouping = as_int32(shift(route_values, 2 * block * probes))
    lists, unfilled = lists_at(descriptor), 0
    shared = probes > 1 and descriptor[SHARED] != 0
    for first in range(start, stop, block):
        count = min(stop - first, block)
        rows = row_of(pointer(hidden), first, dim)
        kept = row_of(pointer(ids), first, limit)
        queries = queries_at(pointer(scratch), block, rows, kept, dim, limit, shared)
        wide, states, codes = queries.wide, queries.states, queries.codes
        logits32 = queries.logits
        routes = Queries(rows, wide, codes, states, route_values, routed, logits32, probes, False)
        bad = widen_queries(descriptor, queries, count)
        if bad >= 0:
            unfilled = -1 - first - bad
            break
        route_queries(descriptor, routes, count)
        empty_heaps(descriptor, 0, queries, count)
        if descriptor[SKETCH] != 0:
            sketch, computed = int64_pointer(descriptor[SKETCH]), shift(pointer(scanned), first)
            scan_prescreened(sketch, lists, routes, queries, count, computed)
        elif count < FEW:
            scan_lists(matrix_at(descriptor, 0), lists, routes, queries, count)
        else:
            scan_grouped(descriptor, lists, routes, queries, count, grouping)
        for q in range(count):
            size = write_answers(queries, q, row_of(pointer(logits), first, limit))
            if size < limit:
                scanned[first + q] = -1
            elif descriptor[SKETCH] == 0:
                scanned[first + q] = lists_length(lists, shift(routes.kept, q * probes), probes)
            unfilled += size < limit
    keep_alive(scratch)
    return unfilled


@kernel("(int64, float32[:,::1], int64, boolean)")
def screen_candidates(address, hidden, least, computes):
    """Return the distinct candidates of each row of hidden [B, D] with exact logits, as CSR.

    `address` is the descriptor's. Returns (status, offsets [B+1], ids, logits); the status is the
    number of rows with fewer than `least` candidates, or -1 - r if row r is not finite or too
    large. Without `computes`, logits are not written, and W is not read.
    """
    descriptor = int64_pointer(address)
    rows, dim = hidden.shape
    matrix, lists, probes = matrix_at(descriptor, 0), lists_at(descriptor), descriptor[PROBES]
    scratch = np.empty(query_room(dim, probes) + _logits_room(descriptor), np.float64)
    clusters = np.empty(rows * probes, np.int32)
    offsets, room, status, one = np.empty(rows + 1, np.int64), 0, 0, np.int64(1)
    offsets[0] = 0
    shared = probes > 1 and descriptor[SHARED] != 0
    for row in range(rows):
        h, chosen = row_of(pointer(hidden), row, dim), row_of(pointer(clusters), row, probes)
        routes = queries_at(pointer(scratch), one, h, chosen, dim, probes, False)
        if widen_queries(descriptor, routes, one) >= 0:
            room, rows, status = 0, 0, -1 - row
            break
        route_queries(descriptor, routes, one)
        room += lists_length(lists, chosen, probes)
    ids, logits = np.empty(room, np.int32), np.empty(room, np.float32)
    for row in range(rows):
        begin = offsets[row]
        chosen = row_of(pointer(clusters), row, probes)
        end = begin + unite(lists, chosen, probes, shared, shift(pointer(ids), begin))
        if computes:
            widen_row(row_of(pointer(hidden), row, dim), pointer(scratch), dim)
            fill_logits(matrix, pointer(scratch), ids, begin, end, logits)
        offsets[row + 1] = end
        status += end - begin < least
    keep_alive((scratch, clusters))
    return status, offsets, ids[: offsets[rows]], logits[: offsets[rows]]
