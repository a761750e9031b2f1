"""Greedy-MIPS: walk each dimension's own ranking of the rows, best product first.

Yu, Hsieh, Lei, Dhillon 2017, A Greedy Approach for Budgeted Maximum Inner Product Search: a row is
a candidate when one of its products h_d w_id is among the largest; `budget` candidates are taken
from a heap of D rankings (Algorithms 2 and 3) and put in order by their true logits.
Time O(D + budget (log D + D)) a row; memory D V ids and D V values, in the order of each dimension.
Shape letters: B batch rows, D hidden size (with the bias), V vocabulary, K answers.
"""

from typing import Any

import numpy as np

from benchmarks.race.methods import SlicedPeer, augmented
from benchmarks.race.peers.kernels import best_of, fast
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # of V


class GreedyMips(SlicedPeer):
    """Everything but the budget is fixed by W."""

    name = "greedy-MIPS"
    kind = "approximate search"

    def __init__(self, softmax: Softmax) -> None:
        super().__init__(softmax)
        self._rows_VD = augmented(softmax)
        words, dim = self._rows_VD.shape
        self.settings = [{"budget": max(16, round(share * words))} for share in SHARES]
        self._order_DV = np.empty((dim, words), np.int32)
        self._value_DV = np.empty((dim, words), np.float32)
        for d in range(dim):
            column = np.ascontiguousarray(self._rows_VD[:, d])
            self._order_DV[d] = np.argsort(-column)
            self._value_DV[d] = column[self._order_DV[d]]
        self._seen: dict[int, np.ndarray] = {}  # by the first row of a slice: each has its own
        self.nbytes = self._order_DV.nbytes + self._value_DV.nbytes

    def answer(self, queries: Float32, start: int, ids: np.ndarray) -> None:
        """The knob is `budget`, candidates a row."""
        seen_V = self._seen.setdefault(start, np.zeros(len(self._rows_VD), np.bool_))
        arrays = (self._rows_VD, self._order_DV, self._value_DV, seen_V)
        search(*arrays, queries, min(self._knob, len(self._rows_VD)), ids)


@fast
def search(
    rows_VD: Any,
    order_DV: Any,
    value_DV: Any,
    seen_V: Any,
    hidden_BD: Any,
    budget: int,
    ids_BK: Any,
) -> None:
    """The K best of `budget` candidates of each row; `seen_V` is False before and after."""
    words, dim = rows_VD.shape
    found, step_D = np.empty(budget, np.int32), np.empty(dim, np.int64)
    product_D, heap_D = np.empty(dim, np.float32), np.empty(dim, np.int32)
    value_K = np.empty(ids_BK.shape[1], np.float32)
    for row in range(len(hidden_BD)):
        hidden_D, count = hidden_BD[row], 0
        for d in range(dim):
            step_D[d], heap_D[d] = 0, d
            product_D[d] = hidden_D[d] * value_DV[d, ranked(hidden_D[d], 0, words)]
        for place in range(dim // 2, -1, -1):
            sink(heap_D, product_D, place)
        while count < budget:
            d = heap_D[0]
            x = hidden_D[d]
            place = ranked(x, step_D[d], words)
            while seen_V[order_DV[d, place]]:
                step_D[d] += 1
                place = ranked(x, step_D[d], words)
            product = x * value_DV[d, place]
            if product < product_D[d]:  # the rows before it are candidates already
                product_D[d] = product
                sink(heap_D, product_D, 0)
                continue
            found[count] = order_DV[d, place]
            seen_V[found[count]] = True
            count += 1
        for place in range(count):
            seen_V[found[place]] = False
        best_of(rows_VD, hidden_D, found, ids_BK[row], value_K)


@fast
def ranked(x: Any, step: int, words: int) -> int:
    """The place of the row with the largest product with x after `step` others."""
    return step if x >= 0 else words - 1 - step


@fast
def sink(heap_D: Any, product_D: Any, place: int) -> None:
    """Restore the heap below one place; the largest product is on top."""
    moved = heap_D[place]
    value = product_D[moved]
    while True:
        child = 2 * place + 1
        if child >= heap_D.size:
            break
        if child + 1 < heap_D.size and product_D[heap_D[child + 1]] > product_D[heap_D[child]]:
            child += 1
        if product_D[heap_D[child]] <= value:
            break
        heap_D[place] = heap_D[child]
        place = child
    heap_D[place] = moved
