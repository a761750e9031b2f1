"""The learned screen: the k best of the lists of the clusters that suit a row best.

Shape letters: B rows of hidden, D hidden size, K answers, C clusters, P probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Int64
from logitsieve.gpu.kernels.route import route_kernel
from logitsieve.gpu.matrix import Matrix, matrix_on, on
from logitsieve.gpu.plans import above, empty_found
from logitsieve.gpu.plans.fallback import Fallback
from logitsieve.gpu.plans.listed import ListedBest, Lists, empty_routed, lists_on
from logitsieve.gpu.plans.scores import Scores

ALONE = 1 << 16  # values of all centroids that one program reads for a row


class Screen(NamedTuple):
    """Centroids and candidate lists, on one device."""

    centroids: Matrix  # [C, D] without biases
    norms: Tensor  # [C] float64: ||v_c|| times the cluster's reach
    lists: Lists
    lengths: Int64  # [C] of the lists, on the host


def screen_on(device: torch.device, arrays: Mapping[str, np.ndarray]) -> Screen:
    """Copy the arrays of a screen's part there: centroids, offsets, ids, and reaches if any."""
    centroids, offsets = arrays["centroids"], arrays["offsets"]
    norms = np.linalg.norm(
        centroids.astype(np.float64), axis=1
    )  # as kernels/screen/route.py has them
    norms *= arrays.get("reaches", np.float32(1))
    return Screen(
        matrix_on(device, centroids, np.zeros(len(centroids), np.float32)),
        on(device, norms),
        lists_on(device, offsets, arrays["ids"]),
        np.diff(offsets).astype(np.int64),
    )


class ScreenPlan:
    """Answers `hidden` into `found`; rows that its lists cannot answer go to the fallback.

    Answers are those of ScreenHead on the host, whose `prescreen` changes none of them and is not
    heeded here: `scanned` counts whole lists.
    """

    def __init__(
        self, matrix: Matrix, screen: Screen, hidden: Tensor, k: int, fallback: Fallback, *,
        probes: int = 1, escalate: float = -1.0,
    ) -> None:  # fmt: skip
        rows, device, clusters = len(hidden), hidden.device, screen.centroids.rows
        probes = min(probes, clusters)
        self.matrix, self.screen, self.hidden, self.k = matrix, screen, hidden, k
        self.found, self.routed = empty_found(rows, k, device), empty_routed(rows, probes, device)
        self.escalates = escalate > -1
        self.least = torch.tensor([escalate], dtype=torch.float64, device=device)
        self.scores = Scores(screen.centroids.weight, screen.centroids.bias, hidden)
        self.near = torch.empty((rows, clusters), dtype=torch.int32, device=device)
        self.dots = torch.empty((rows, clusters), dtype=torch.float64, device=device)
        most = int(np.sort(screen.lengths)[-probes:].sum())
        self.listed = ListedBest(matrix, hidden, k, screen.lists, self.routed, most, self.found)
        passes_on = self.escalates or k > screen.lengths.min()
        status = self.routed.status
        self.fallback = fallback(hidden, k, self.found, status) if passes_on else None

    def run(self) -> None:
        """Three kernels where centroids are few and lists short, and those of the fallback."""
        scored = self.screen.centroids.weight.numel() > ALONE
        if scored:
            self.scores.run()
        self._route(scored)
        self.listed.run()
        if self.fallback is not None:
            self.fallback.run()

    def _route(self, scored: bool) -> None:
        (centroids, zeros, slacks), lists = self.screen.centroids, self.screen.lists
        clusters, probes = len(centroids), self.routed.routes.shape[1]
        route_kernel[(len(self.hidden),)](
            centroids, zeros, slacks, self.screen.norms, self.least, lists.offsets, lists.ids,
            self.hidden, self.matrix.limits,
            self.scores.found, self.near, self.dots, *self.routed,
            clusters, self.matrix.dim, self.k, lists.longest.bit_length(),
            P=probes, CLUSTERS=above(clusters, 16), SCORED=scored, ESCALATE=self.escalates,
        )  # fmt: skip
