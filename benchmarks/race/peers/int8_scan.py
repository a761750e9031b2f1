"""Int8 dot products of all rows, then float32 logits of the best: the simple idea, done well.

W in int8 with a scale a word, a query in int8 with a scale of its own; sixteen words at a time by
the instruction that the CPU has for bytes, as the screen's routing does. The best `rescored` words
get their float32 logits. A block of codes is read for all queries of a batch before the next one.
Shape letters: B batch rows, D hidden size, V vocabulary, G groups of sixteen words, R rescored.
"""

from typing import Any

import numpy as np

from benchmarks.race.methods import SlicedPeer, augmented
from benchmarks.race.peers.kernels import best_of, fast, offer
from benchmarks.race.points import RESCORED
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.kernels.screen.route import encode_centroids, encode_row
from logitsieve.kernels.simd.byte_lanes import OFFSET, multiply_bytes, scale_sums, zero_sums
from logitsieve.kernels.simd.lanes import LANES, load, multiply_add, splat32, store
from logitsieve.kernels.simd.masks import lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import pointer, shift

COUNTS = (5, 10, 20, 40)  # of words that are rescored
BLOCK_BYTES = 32 * 1024  # of codes, which stay in the L1 cache for the batch


class Int8Scan(SlicedPeer):
    """Keeps float32 W for the rows that are rescored."""

    name = "int8 scan, rescored"
    kind = RESCORED
    settings = tuple({"rescored": count} for count in COUNTS)

    def __init__(self, softmax: Softmax) -> None:
        super().__init__(softmax)
        self._codes, self._scales, _ = encode_centroids(softmax.weight)
        self._bias = np.full(len(self._scales), -np.inf, np.float32)
        self._bias[: softmax.vocab_size] = softmax.bias
        self._rows_VD = augmented(softmax)
        self.nbytes = self._codes.nbytes + self._scales.nbytes + self._bias.nbytes

    def answer(self, queries: Float32, start: int, ids: np.ndarray) -> None:
        """The knob is `rescored`, words that get their float32 logits."""
        rescored = min(max(self._knob, ids.shape[1]), len(self._rows_VD))
        search(self._codes, self._scales, self._bias, self._rows_VD, queries, rescored, ids)


@fast
def search(
    codes: Any, scales_V: Any, bias_V: Any, rows_VD: Any, hidden_BD: Any, rescored: int, ids_BK: Any
) -> None:
    """The K best of each query's `rescored` best words; codes uint8 [G, D/4, 16, 4]."""
    groups, quads = codes.shape[:2]
    count, width = hidden_BD.shape
    planes, values = np.empty((count, 2, 4 * quads), np.int8), np.empty(LANES, np.float32)
    scale_B, total_B = np.empty(count, np.float32), np.empty(count, np.int64)
    best_BR = np.full((count, rescored), -1)
    value_BR = np.full((count, rescored), np.float32(-np.inf))
    value_K = np.empty(ids_BK.shape[1], np.float32)
    query, plane, row = pointer(hidden_BD), pointer(planes), pointer(codes)
    scale, bias, lanes = pointer(scales_V), pointer(bias_V), pointer(values)
    for b in range(count):
        first = shift(plane, 8 * quads * b)
        scale_B[b], total_B[b], _ = encode_row(
            shift(query, width * b), width - 1, first, shift(first, 4 * quads)
        )
    block = max(1, BLOCK_BYTES // (4 * LANES * quads))
    for start in range(0, groups, block):
        for b in range(count):
            first = shift(plane, 8 * quads * b)
            second = shift(first, 4 * quads)
            for group in range(start, min(start + block, groups)):
                place = LANES * group
                sums = products(shift(row, place * 4 * quads), first, second, quads)
                dots = scale_sums(sums, OFFSET * total_B[b], load(scale, place))
                logits = multiply_add(dots, splat32(scale_B[b]), load(bias, place))
                mask = lanes_not_below(logits, value_BR[b, rescored - 1])
                store(lanes, 0, logits)
                while mask != 0:
                    lane = lowest_bit(mask)
                    mask &= mask - 1
                    if values[lane] > value_BR[b, rescored - 1]:
                        offer(best_BR[b], value_BR[b], place + lane, values[lane])
    for b in range(count):
        best_of(rows_VD, hidden_BD[b], best_BR[b], ids_BK[b], value_K)


@fast
def products(rows: Any, first: Any, second: Any, quads: Any) -> Any:
    """Sixteen sums; four chains hide the latency of each."""
    a, b = zero_sums(), zero_sums()
    c, d = zero_sums(), zero_sums()
    for quad in range(0, quads, 4):
        a = multiply_bytes(a, rows, first, second, quad)
        b = multiply_bytes(b, rows, first, second, quad + 1)
        c = multiply_bytes(c, rows, first, second, quad + 2)
        d = multiply_bytes(d, rows, first, second, quad + 3)
    return (a + b) + (c + d)
