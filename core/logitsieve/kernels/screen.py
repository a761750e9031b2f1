"""Top k of a learned screen: route each row to its best clusters, then scan their candidate lists.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, C clusters, P probes, Q queries
answered together.

A screen's record is that of W, that of the centroids (with a bias of zeros, or their own), then the
addresses of offsets int32 [C+1] and ids int32 [offsets[C]], the number of probes, the addresses of
the centroids' int8 codes and scales (0 where there are none), the codes' largest error, whether
an id may be in two lists, the least cosine of a row to its centroid, and the address of the
centroids' norms float64 [C] (0: any cosine will do), and the address of the record of a sketch
(0: none). Rows of a lower cosine get the list C, which is empty.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.byte_lanes import VNNI
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.dots import padded, row_of, widen_row
from logitsieve.kernels.gather import fill_logits
from logitsieve.kernels.lanes import LANES
from logitsieve.kernels.pointers import (
    as_float32,
    as_float64,
    as_int32,
    float32_pointer,
    float64_of_bits,
    float64_pointer,
    int32_pointer,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
    uint8_pointer,
)
from logitsieve.kernels.prescreen import (
    describe_query,
    filter_at,
    filter_room,
    scan_filtered,
)
from logitsieve.kernels.queries import (
    CHUNK,
    NORM,
    STATE,
    Queries,
    at_once,
    empty_heaps,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.record import DIM, LARGEST_NORM, RECORD, ROWS, matrix_at, matrix_record
from logitsieve.kernels.route import LARGEST_DIM, encode_centroids, route
from logitsieve.kernels.scan import scan_all, scan_four, scan_one
from logitsieve.types.results import Float32, Int32, Int64

(
    OFFSETS, IDS, PROBES, CODES, SCALES, ERROR, SHARED, ESCALATE, NORMS, SKETCH,
) = range(2 * RECORD, 2 * RECORD + 10)  # fmt: skip

Lists = namedtuple("Lists", "offsets ids")
Clusters = namedtuple("Clusters", "matrix codes scales error largest probes")


def screen_record(
    softmax_record: Int64,
    centroids: Float32,
    offsets: Int32,
    ids: Int32,
    probes: int,
    biases: Float32 | None = None,
    disjoint: bool = False,
    escalate: float = -1.0,
    sketch: Int64 | None = None,
    reaches: Float32 | None = None,
) -> tuple[Int64, tuple[np.ndarray, ...]]:
    """The record of a screen over the softmax of `softmax_record`, and the arrays it points to.

    `biases` [C] are added to the centroids' dots, which are then not approximated by int8. Lists
    that are `disjoint` share no id. Rows whose cosine to the best centroid is below `escalate` find
    no candidates; `reaches` [C] are factors of that for the rows of each. With the record of a
    `sketch`, lists are scanned through it.
    """
    offsets = np.append(offsets, offsets[-1])
    bias = np.zeros(centroids.shape[0], np.float32) if biases is None else biases
    tail = np.zeros(10, np.int64)
    tail[:3] = offsets.ctypes.data, ids.ctypes.data, probes
    kept: tuple[np.ndarray, ...] = (centroids, bias, offsets, ids)
    if biases is None and VNNI and centroids.shape[1] <= LARGEST_DIM:
        codes, scales, error = encode_centroids(centroids)
        kept += (codes, scales)
        tail[3:5] = codes.ctypes.data, scales.ctypes.data
        tail[5:6] = np.array([error]).view(np.int64)
    tail[6] = not disjoint
    if escalate > -1:
        norms = np.linalg.norm(centroids.astype(np.float64), axis=1)
        norms *= 1.0 if reaches is None else reaches
        kept += (norms,)
        tail[7:8] = np.array([escalate]).view(np.int64)
        tail[8] = norms.ctypes.data
    if sketch is not None:
        kept += (sketch,)
        tail[9] = sketch.ctypes.data
    return np.concatenate([softmax_record, matrix_record(centroids, bias), tail]), kept


@inline
def _clusters(record):
    return Clusters(
        matrix_at(record, RECORD),
        uint8_pointer(record[CODES]),
        float32_pointer(record[SCALES]),
        float64_of_bits(record[ERROR]),
        float64_of_bits(record[RECORD + LARGEST_NORM]),
        record[PROBES],
    )


@inline
def _lists(record):
    return Lists(int32_pointer(record[OFFSETS]), int32_pointer(record[IDS]))


@inline
def _spare(record):
    """float64 values of scratch, for float32 logits of rows or for routing one query."""
    routing = (record[RECORD + ROWS] + LANES) // 2 + padded(record[RECORD + DIM])
    if record[SKETCH] != 0:
        routing = max(routing, CHUNK // 2 + filter_room(int64_pointer(record[SKETCH])))
    return max(2 * CHUNK, routing)


@inline
def _route_queries(record, routes, count):
    """Fill the heaps of `routes` with the best clusters."""
    clusters = _clusters(record)
    empty_heaps(record, RECORD, routes, count)
    if record[CODES] == 0:
        scan_all(clusters.matrix, routes, count)
    else:
        for q in range(count):
            if not route(clusters, routes, q):
                scan_one(clusters.matrix, False, routes.kept, 0, clusters.matrix.rows, routes, q)
    if record[NORMS] != 0:
        _escalate(record, routes, count)


@inline
def _escalate(record, routes, count):
    """Route the rows that are far from every centroid to the list that is empty."""
    norms, least = float64_pointer(record[NORMS]), float64_of_bits(record[ESCALATE])
    for q in range(count):
        first = q * routes.limit
        best = first
        for place in range(first + 1, first + routes.limit):
            if routes.values[place] > routes.values[best]:
                best = place
        length = routes.states[STATE * q + NORM] * norms[routes.kept[best]]
        if routes.values[best] < least * length:
            for place in range(first, first + routes.limit):
                routes.kept[place] = record[RECORD + ROWS]


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
    size = block * (padded(dim) + STATE + limit + 2 * probes) + _spare(record)
    scratch = np.empty(size, np.float64)
    wide = pointer(scratch)
    states = shift(wide, block * padded(dim))
    values = shift(states, block * STATE)
    route_values = shift(values, block * limit)
    routed = shift(route_values, block * probes)
    spare = as_float32(shift(routed, block * probes))
    lists, unfilled = _lists(record), 0
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
        _route_queries(record, routes, count)
        empty_heaps(record, 0, queries, count)
        if record[SKETCH] != 0:
            _scan_filtered(
                int64_pointer(record[SKETCH]), lists, routes, queries, count, scanned[first:]
            )
        elif count < 4:
            _scan_lists(matrix_at(record, 0), lists, routes, queries, count)
        else:
            _scan_grouped(record, lists, routes, queries, count)
        for q in range(count):
            size = write_answers(queries, q, row_of(pointer(logits), first, limit))
            if size < limit:
                scanned[first + q] = -1
            elif record[SKETCH] == 0:
                scanned[first + q] = _length(lists, shift(routes.kept, q * probes), probes)
            unfilled += size < limit
    keep_alive(scratch)
    return unfilled


@inline
def _length(lists, clusters, probes):
    total = 0
    for p in range(probes):
        total += lists.offsets[clusters[p] + 1] - lists.offsets[clusters[p]]
    return total


@inline
def _scan_lists(matrix, lists, routes, queries, count):
    for q in range(count):
        for p in range(routes.limit):
            cluster = routes.kept[q * routes.limit + p]
            first, last = lists.offsets[cluster], lists.offsets[cluster + 1]
            scan_one(matrix, True, lists.ids, first, last, queries, q)


@inline
def _scan_filtered(sketch, lists, routes, queries, count, scanned):
    """Each list through the sketch of this record; the scratch begins with a chunk of logits."""
    filtered = filter_at(sketch, as_float64(shift(queries.logits, CHUNK)))
    for q in range(count):
        describe_query(sketch, filtered, queries, q)
        scanned[q] = 0
        for p in range(routes.limit):
            cluster = routes.kept[q * routes.limit + p]
            first, last = lists.offsets[cluster], lists.offsets[cluster + 1]
            scanned[q] += scan_filtered(sketch, filtered, lists.ids, first, last, queries, q)


@inline
def _scan_grouped(record, lists, routes, queries, count):
    """Queries of the same cluster go through its list four at a time."""
    matrix, clusters = matrix_at(record, 0), record[RECORD + ROWS]
    ends = np.zeros(clusters + 2, np.int64)  # of the lists and of the empty one
    order = np.empty(count * routes.limit, np.int64)
    _group(routes, count, ends, order)
    begin = 0
    for cluster in range(clusters):
        end = ends[cluster]
        first, last = lists.offsets[cluster], lists.offsets[cluster + 1]
        fours = begin + (end - begin) // 4 * 4
        for i in range(begin, fours, 4):
            q0, q1, q2, q3 = order[i], order[i + 1], order[i + 2], order[i + 3]
            scan_four(matrix, True, lists.ids, first, last, queries, q0, q1, q2, q3)
        for i in range(fours, end):
            scan_one(matrix, True, lists.ids, first, last, queries, order[i])
        begin = end


@inline
def _group(routes, count, ends, order):
    """Counting sort: cluster c owns order[ends[c-1]:ends[c]], the queries routed to it."""
    routed = count * routes.limit
    for i in range(routed):
        ends[routes.kept[i] + 1] += 1
    for cluster in range(1, ends.size):
        ends[cluster] += ends[cluster - 1]
    for i in range(routed):
        cluster = routes.kept[i]
        order[ends[cluster]] = i // routes.limit
        ends[cluster] += 1


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
    matrix, lists, probes = matrix_at(record, 0), _lists(record), record[PROBES]
    scratch = np.empty(padded(dim) + STATE + 2 * probes + _spare(record), np.float64)
    wide = pointer(scratch)
    states = shift(wide, padded(dim))
    values = shift(states, STATE)
    clusters = np.empty(rows * probes, np.int32)
    offsets, room, status = np.zeros(rows + 1, np.int64), 0, 0
    shared = probes > 1 and record[SHARED] != 0
    for row in range(rows):
        here, kept = row_of(pointer(hidden), row, dim), row_of(pointer(clusters), row, probes)
        spare = as_float32(shift(values, 2 * probes))
        routes = Queries(here, wide, states, values, kept, spare, probes, False)
        if widen_queries(record, routes, 1) >= 0:
            room, rows, status = 0, 0, -1 - row
            break
        _route_queries(record, routes, 1)
        room += _length(lists, kept, probes)
    ids, logits = np.empty(room, np.int32), np.empty(room, np.float32)
    for row in range(rows):
        begin = offsets[row]
        own = row_of(pointer(clusters), row, probes)
        end = begin + _unite(lists, own, probes, shared, ids[begin:])
        widen_row(row_of(pointer(hidden), row, dim), wide, dim)
        fill_logits(matrix, wide, ids, begin, end, logits)
        offsets[row + 1] = end
        status += end - begin < least
    keep_alive(scratch)
    keep_alive(clusters)
    return status, offsets, ids[: offsets[rows]], logits[: offsets[rows]]


@inline
def _unite(lists, clusters, probes, shared, out):
    """Write the distinct ids of the clusters' lists; how many there are."""
    size = 0
    for p in range(probes):
        for i in range(lists.offsets[clusters[p]], lists.offsets[clusters[p] + 1]):
            out[size] = lists.ids[i]
            size += 1
    if not shared:
        return size
    out[:size].sort()
    distinct = 0
    for i in range(size):
        if i == 0 or out[i] != out[distinct - 1]:
            out[distinct] = out[i]
            distinct += 1
    return distinct
