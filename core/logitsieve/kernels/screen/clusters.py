"""What a learned screen is to the kernels, and how queries are routed to its lists.

Shape letters: V vocabulary, D hidden size, C clusters, P probes.

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

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.screen.route import LARGEST_DIM, encode_centroids, route
from logitsieve.kernels.simd.byte_lanes import VNNI
from logitsieve.kernels.simd.pointers import (
    float32_pointer,
    float64_of_bits,
    float64_pointer,
    uint8_pointer,
)
from logitsieve.kernels.topk.descriptor import LARGEST_NORM, RECORD, ROWS, matrix_at, matrix_record
from logitsieve.kernels.topk.queries import NORM, STATE, empty_heaps
from logitsieve.kernels.topk.scan import scan_all, scan_one

(
    OFFSETS, IDS, PROBES, CODES, SCALES, ERROR, SHARED, ESCALATE, NORMS, SKETCH,
) = range(2 * RECORD, 2 * RECORD + 10)  # fmt: skip

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
def route_queries(record, routes, count):
    """Fill the heaps of `routes` with the best clusters."""
    clusters = _clusters(record)
    empty_heaps(record, RECORD, routes, count)
    if record[CODES] == 0:
        scan_all(clusters.matrix, routes, count)
    else:
        for q in range(count):
            if not route(clusters, routes, q):
                first, last = np.int64(0), clusters.matrix.rows
                scan_one(clusters.matrix, False, routes.kept, first, last, routes, q)
    if record[NORMS] != 0:
        _escalate(record, routes, count)


@splice
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
