"""Top k of a learned screen: route each row to its best clusters, then scan their lists."""

from collections import namedtuple
from math import exp, log, log1p

import numpy as np

from logitsieve.kernels.compile import inline, inline_once, kernel
from logitsieve.kernels.screen.route import (
    CENTROIDS,
    IDS,
    MOST_ERROR,
    OFFSETS,
    OUTSIDE,
    PROBES,
    SPREADS,
    best_place,
    route_queries,
)
from logitsieve.kernels.simd.dots import four_of, padded, row_of
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import (
    as_int32,
    float32_pointer,
    int32_pointer,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.topk.allowed import every_row
from logitsieve.kernels.topk.descriptor import DIM, ROWS, exact_logit, matrix_at, number_at
from logitsieve.kernels.topk.merge import FIELDS, write_estimate
from logitsieve.kernels.topk.queries import (
    LOGITS,
    MOST,
    SIZE,
    STATE,
    SUMMED,
    TOTAL,
    Queries,
    at_once,
    begin_block,
    empty_heaps,
    queries_at,
    query_size,
    widen_queries,
    write64,
    write_answers,
)
from logitsieve.kernels.topk.scan import LISTED, scan, scan_one

ClusterLists = namedtuple("ClusterLists", "offsets ids")


@inline
def ends_of(lists, cluster):
    return np.int64(lists.offsets[cluster]), np.int64(lists.offsets[cluster + 1])


@inline
def lists_length(lists, clusters, probes):
    total = 0
    for p in range(probes):
        first, last = ends_of(lists, clusters[p])
        total += last - first
    return total


@inline
def best_cluster(routes, q):
    return np.int64(routes.kept[best_place(routes, q)])


@inline
def _sum_own(routes, queries, q, cluster, sums):
    """Let query q sum the list of `cluster` if that is its best cluster."""
    if sums:
        own = best_cluster(routes, q) == cluster
        queries.states[STATE * q + SUMMED] = 1.0 if own else 0.0


@inline_once
def scan_lists(matrix, lists, routes, queries, count, sums):
    for q in range(count):
        for p in range(routes.limit):
            cluster = np.int64(routes.kept[q * routes.limit + p])
            first, last = ends_of(lists, cluster)
            _sum_own(routes, queries, q, cluster, sums)
            scan_one(matrix, LISTED, lists.ids, first, last, queries, q)


@inline_once
def scan_grouped(descriptor, lists, routes, queries, count, scratch, sums):
    matrix, clusters, begin = matrix_at(descriptor, 0), descriptor[CENTROIDS + ROWS], np.int64(0)
    ends = scratch  # of all lists, with the empty one
    order = shift(scratch, clusters + 2)
    _group(routes, count, clusters, ends, order)
    for cluster in range(clusters):
        end = np.int64(ends[cluster])
        first, last = ends_of(lists, cluster)
        for i in range(begin, end):
            _sum_own(routes, queries, np.int64(order[i]), cluster, sums)
        for i in range(begin, end, 4):
            i0, i1, i2, i3, few = four_of(i, end)
            q0, q1, q2, q3 = (
                np.int64(order[i0]),
                np.int64(order[i1]),
                np.int64(order[i2]),
                np.int64(order[i3]),
            )
            scan(matrix, LISTED, lists.ids, first, last, queries, q0, q1, q2, q3, few)
        begin = end


@inline_once
def _group(routes, count, clusters, ends, order):
    routed = count * routes.limit
    for cluster in range(clusters + 2):
        ends[cluster] = 0
    for i in range(routed):
        ends[routes.kept[i] + 1] += 1
    for cluster in range(1, clusters + 2):
        ends[cluster] += ends[cluster - 1]
    for i in range(routed):
        cluster = routes.kept[i]
        order[ends[cluster]] = i // routes.limit
        ends[cluster] += 1


LEAST_GROUPED = 4  # fewer queries are not grouped by cluster


@inline
def _logits_size(descriptor):
    routing = (descriptor[CENTROIDS + ROWS] + LANES) // 2 + padded(descriptor[CENTROIDS + DIM])
    return max(LOGITS, routing)


@inline
def _scratch_sizes(descriptor, rows, limit):
    """Return the queries at once, and float64 values for a query, logits, `scan_grouped`."""
    each = query_size(descriptor[DIM], limit) + 2 * descriptor[PROBES]
    block, grouped = at_once(rows, each), 0
    if block >= LEAST_GROUPED:  # int32 ends of lists, and an order of queries
        grouped = (descriptor[CENTROIDS + ROWS] + 2 + block * descriptor[PROBES]) // 2 + 1
    return block, each, _logits_size(descriptor), grouped


@inline_once
def _answer_block(descriptor, scratch, hidden, ids, first, count, sizes, scanned, sums):
    """Answer `count` rows of hidden from `first` on; return (queries, routes, -1 or a refused row).

    scanned[q] is the total length of the lists. With `sums` the best cluster's logits are summed.
    """
    block, _, logits_size, _ = sizes
    probes, limit = descriptor[PROBES], ids.shape[1]
    shared = probes > 1
    queries, bad = begin_block(
        descriptor, scratch, block, pointer(hidden), pointer(ids), first, count, limit, shared
    )
    size = block * query_size(descriptor[DIM], limit) + logits_size
    route_values = shift(scratch, size)
    routes = Queries(
        queries.hidden, queries.wide, queries.codes, queries.states, route_values,
        as_int32(shift(route_values, block * probes)), queries.logits, queries.picked, probes,
        False, every_row(),
    )  # fmt: skip
    if bad >= 0:
        return queries, routes, bad
    lists = ClusterLists(int32_pointer(descriptor[OFFSETS]), int32_pointer(descriptor[IDS]))
    route_queries(descriptor, routes, count)
    empty_heaps(descriptor, 0, queries, count)
    if count < LEAST_GROUPED:
        scan_lists(matrix_at(descriptor, 0), lists, routes, queries, count, sums)
    else:
        grouping = as_int32(shift(route_values, 2 * block * probes))
        scan_grouped(descriptor, lists, routes, queries, count, grouping, sums)
    for q in range(count):
        scanned[q] = lists_length(lists, shift(routes.kept, q * probes), probes)
    return queries, routes, bad


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def screen_topk(address, hidden, ids, logits, scanned, start, stop):
    descriptor, limit = int64_pointer(address), ids.shape[1]
    sizes, unfilled = _scratch_sizes(descriptor, stop - start, limit), 0
    block, each, logits_size, grouped = sizes
    scratch = np.empty(block * each + logits_size + grouped, np.float64)
    for first in range(start, stop, block):
        count, computed = min(stop - first, block), shift(pointer(scanned), first)
        queries, _, bad = _answer_block(
            descriptor, pointer(scratch), hidden, ids, first, count, sizes, computed, False
        )
        if bad >= 0:
            unfilled = -1 - bad
            break
        for q in range(count):
            size = write_answers(queries, q, row_of(pointer(logits), first, limit))
            if size < limit:
                computed[q] = -1
            unfilled += size < limit
    keep_alive(scratch)
    return unfilled


@kernel(
    "(int64, float32[:,::1], int32[:,::1], float64[:,::1], float64[:,::1], float64[::1],"
    " int32[::1], int64, int64)"
)
def screen_log_z(address, hidden, ids, logits, log_z, errors, scanned, start, stop):
    """Like `screen_topk` with float64 logits, log_z [B, 4] and its standard errors [B].

    log Z is of the best cluster's list and the estimate for all other rows. A row with an error
    above MOST_ERROR has a scanned of -1, too.
    """
    descriptor, limit, bad = int64_pointer(address), ids.shape[1], -1
    sizes = _scratch_sizes(descriptor, stop - start, limit)
    block, each, logits_size, grouped = sizes
    scratch = np.empty(block * each + logits_size + grouped, np.float64)
    outside, most = matrix_at(descriptor, OUTSIDE), number_at(descriptor, MOST_ERROR)
    spreads = float32_pointer(descriptor[SPREADS])
    for first in range(start, stop, block):
        count, computed = min(stop - first, block), shift(pointer(scanned), first)
        queries, routes, bad = _answer_block(
            descriptor, pointer(scratch), hidden, ids, first, count, sizes, computed, True
        )
        if bad >= 0:
            break
        for q in range(count):
            row, state = first + q, shift(queries.states, STATE * q)
            size, cluster = int(state[SIZE]), best_cluster(routes, q)
            if size == limit and cluster < outside.rows:
                wide = row_of(queries.wide, q, padded(descriptor[DIM]))
                rest = exact_logit(outside, wide, cluster)
                inside = state[MOST] + log(state[TOTAL])
                larger = max(inside, rest)
                value = larger + log1p(exp(min(inside, rest) - larger))
                write_estimate(row_of(pointer(log_z), row, FIELDS), value)
                errors[row] = spreads[cluster] * exp(rest - value)
            if size < limit or cluster >= outside.rows or not errors[row] <= most:
                computed[q] = -1
                continue
            write64(queries, q, row_of(pointer(logits), row, limit))
    keep_alive(scratch)
    return bad


@kernel("(int64, float32[:,::1], int32[:,::1])")
def screen_routes(address, hidden, clusters):
    """Fill clusters [B, P], C for rows that escalate."""
    descriptor = int64_pointer(address)
    (rows, dim), probes, one, bad = hidden.shape, clusters.shape[1], np.int64(1), -1
    scratch = np.empty(query_size(dim, probes) + _logits_size(descriptor), np.float64)
    for row in range(rows):
        h, chosen = row_of(pointer(hidden), row, dim), row_of(pointer(clusters), row, probes)
        routes = queries_at(pointer(scratch), one, h, chosen, dim, probes, False, every_row())
        if widen_queries(descriptor, routes, one) >= 0:
            bad = row
            break
        route_queries(descriptor, routes, one)
    keep_alive((scratch, clusters))
    return bad
