"""A greedy knapsack of the labels that each cluster keeps under a time budget.

papers/001, section 3, "Optimization"; derived in docs/building.md.

Shape letters: P observed (cluster, label) pairs, C clusters.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Bool, Int32, Int64

ROUNDING = 1e-14  # the share that a quotient of whole numbers may lose when multiplied back


class Knapsack:
    """The pairs in greedy order, so that many budgets can be tried; O(P log P) once.

    `hits_P` counts the rows of a pair's cluster that have its label, m_ts; `cluster_P` is the
    pair's cluster t; `rows_C` counts the rows of each cluster, n_t.
    """

    def __init__(self, cluster_P: Int32, hits_P: Int32, rows_C: Int64, waste_weight: float) -> None:
        self._pairs = len(hits_P)
        self._total_rows = int(rows_C.sum())
        weight_P = rows_C[cluster_P]  # n_t; the paper's capacity is N times B
        # Eq. 6: keeping (t, s) removes m_ts misses and wastes lambda on the n_t - m_ts others.
        value_P = (1 + waste_weight) * hits_P - waste_weight * weight_P
        paying = np.flatnonzero(value_P > 0)
        # value / weight = (1 + lambda) m_ts / n_t - lambda rises with m_ts / n_t alone
        order = np.argsort(-(hits_P[paying] / weight_P[paying]), kind="stable")
        self._items = paying[order]
        self._weights = weight_P[self._items]

    @property
    def everything(self) -> float:
        """Candidates a row on average when every pair that pays is kept."""
        return float(self._weights.sum()) / self._total_rows

    def select(self, budget: float | None) -> Bool:
        """bool [P], the kept pairs: at most `budget` candidates a row on average; None: all paying.

        Takes items in order and goes on past one that does not fit. An item that did not fit never
        fits later, so each pass drops all such items and takes the longest prefix of the rest.
        """
        keep_P = np.zeros(self._pairs, bool)
        budget = self.everything if budget is None else min(budget, self.everything + 1)
        capacity = int(budget * self._total_rows * (1 + ROUNDING))
        items, weights = self._items, self._weights
        while True:
            fits = weights <= capacity
            items, weights = items[fits], weights[fits]
            if not len(items):
                return keep_P
            filled = np.cumsum(weights)
            taken = int(np.searchsorted(filled, capacity, side="right"))
            keep_P[items[:taken]] = True
            capacity -= int(filled[taken - 1])
            items, weights = items[taken:], weights[taken:]
