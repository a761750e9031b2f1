"""The candidate lists of a learned screen, scanned for the queries that were routed to them.

Shape letters: C clusters, P probes, Q queries answered together.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.screen.clusters import IDS, OFFSETS
from logitsieve.kernels.screen.prescreen import describe_query, filter_at, scan_filtered
from logitsieve.kernels.simd.pointers import as_float64, int32_pointer, shift
from logitsieve.kernels.topk.descriptor import RECORD, ROWS, matrix_at
from logitsieve.kernels.topk.queries import CHUNK
from logitsieve.kernels.topk.scan import LISTED, scan_four, scan_one

Lists = namedtuple("Lists", "offsets ids")


@inline
def lists_at(record):
    """The lists of a screen's record."""
    return Lists(int32_pointer(record[OFFSETS]), int32_pointer(record[IDS]))


@inline
def ends_of(lists, cluster):
    """Where the ids of a cluster's list begin and end."""
    return np.int64(lists.offsets[cluster]), np.int64(lists.offsets[cluster + 1])


@inline
def lists_length(lists, clusters, probes):
    """How many ids the lists of these clusters hold, with repetitions."""
    total = 0
    for p in range(probes):
        first, last = ends_of(lists, clusters[p])
        total += last - first
    return total


@splice
def scan_lists(matrix, lists, routes, queries, count):
    """Offer to each query the rows of its lists, one query after the other."""
    for q in range(count):
        for p in range(routes.limit):
            first, last = ends_of(lists, routes.kept[q * routes.limit + p])
            scan_one(matrix, LISTED, lists.ids, first, last, queries, q)


@splice
def scan_prescreened(sketch, lists, routes, queries, count, scanned):
    """Each list through the sketch of this record; the scratch begins with a chunk of logits."""
    filtered = filter_at(sketch, as_float64(shift(queries.logits, CHUNK)))
    for q in range(count):
        describe_query(sketch, filtered, queries, q)
        scanned[q] = 0
        for p in range(routes.limit):
            first, last = ends_of(lists, routes.kept[q * routes.limit + p])
            scanned[q] += scan_filtered(sketch, filtered, lists.ids, first, last, queries, q)


@inline
def grouping_room(record, routed):
    """int32 values of scratch for `scan_grouped` of that many routes."""
    return record[RECORD + ROWS] + 2 + routed


@splice
def scan_grouped(record, lists, routes, queries, count, scratch):
    """Queries of the same cluster go through its list four at a time."""
    matrix, clusters, begin = matrix_at(record, 0), record[RECORD + ROWS], np.int64(0)
    ends = scratch  # of the lists and of the empty one
    order = shift(scratch, clusters + 2)
    _group(routes, count, clusters, ends, order)
    for cluster in range(clusters):
        end = np.int64(ends[cluster])
        first, last = ends_of(lists, cluster)
        fours = begin + (end - begin) // 4 * 4
        for i in range(begin, fours, 4):
            q0, q1 = np.int64(order[i]), np.int64(order[i + 1])
            q2, q3 = np.int64(order[i + 2]), np.int64(order[i + 3])
            scan_four(matrix, LISTED, lists.ids, first, last, queries, q0, q1, q2, q3)
        for i in range(fours, end):
            scan_one(matrix, LISTED, lists.ids, first, last, queries, np.int64(order[i]))
        begin = end


@splice
def _group(routes, count, clusters, ends, order):
    """Counting sort: cluster c owns order[ends[c-1]:ends[c]], the queries routed to it."""
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


@inline
def unite(lists, clusters, probes, shared, out):
    """Write the distinct ids of the clusters' lists; how many there are."""
    size = np.int64(0)
    for p in range(probes):
        first, last = ends_of(lists, clusters[p])
        for i in range(first, last):
            out[size] = lists.ids[i]
            size += 1
    if not shared:
        return size
    _sort(out, size)
    distinct = 0
    for i in range(size):
        if i == 0 or out[i] != out[distinct - 1]:
            out[distinct] = out[i]
            distinct += 1
    return distinct


@inline
def _sort(ids, count):
    """Shell's sort by Knuth's gaps 1, 4, 13, ...: Numba's own takes a second to compile."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            moved, place = ids[i], i
            while place >= gap and ids[place - gap] > moved:
                ids[place] = ids[place - gap]
                place -= gap
            ids[place] = moved
        gap //= 3
