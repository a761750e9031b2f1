"""A softmax of the best classes and some of the rest: what LSH, k-means and top-k share.

Z^ = sum over S e^x + (V - |S|) / |T| sum over T e^x: S holds the targets and the classes that a
search finds, T is uniform without replacement outside S (papers/000 equation 4, with V - |S| for
its C - k). The loss is log Z^ - x_t, and equations 5 and 6 are its gradient.

Shape letters: B rows, D hidden size, V classes, M targets of a row, E candidates of all rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.training.autograd.rng import Step
from logitsieve.training.autograd.scratch import Scratch
from logitsieve.training.kernels.outside import with_outside
from logitsieve.training.losses.loss import Common, at_least
from logitsieve.training.losses.proposal import Ragged, Shared
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.losses.targets import Targets

FEW_ROWS = 16  # up to which a set for each row costs less than one product with all of them


class BestOptions(Common, total=False):
    """What all of them take. k: classes that a row's search gives (default 10 sqrt V).

    Its targets are in S beside them. n_uniform: |T|. per_row: a set for each row, or one for the
    batch (None: by the number of rows). max_shared: classes of the batch's set, beside the targets
    (default: k). seed: of T and of the search.
    """

    k: int | None
    n_uniform: int | None
    per_row: bool | None
    max_shared: int | None
    seed: int


class BestSoftmax(SampledSoftmax):
    """The loss; a method is `default_uniform`, `best_of_rows` and `best_of_batch`."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        k: int | None = None,
        n_uniform: int | None = None,
        per_row: bool | None = None,
        max_shared: int | None = None,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        k = root(n_classes, 10) if k is None else k
        at_least("k", k, 1, n_classes)
        n_uniform = min(n_classes, self.default_uniform(k)) if n_uniform is None else n_uniform
        at_least("n_uniform", n_uniform, 0, n_classes)
        max_shared = k if max_shared is None else max_shared
        at_least("max_shared", max_shared, 1, n_classes)
        self.k, self.n_uniform, self.max_shared = k, n_uniform, max_shared
        self.per_row = per_row
        self.scratch = Scratch()

    @abstractmethod
    def default_uniform(self, k: int) -> int:
        """|T|."""

    @abstractmethod
    def best_of_rows(
        self, hidden_BD: Tensor, targets_BM: Int64, random: Step
    ) -> tuple[Int64, Int32]:
        """CSR (offsets, ids) of what each row finds, without its targets (padded by -1)."""

    @abstractmethod
    def best_of_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        """At most `max_shared` ids that rows find most often, without any row's targets."""

    def propose(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Shared | Ragged:
        """See proposal.Proposal."""
        targets_BM = padded(targets)
        per_row = targets.count <= FEW_ROWS if self.per_row is None else self.per_row
        if per_row:
            offsets, ids = self.best_of_rows(hidden_BD, targets_BM, random)
            offsets, ids, log_weights = self.beside(offsets, ids, targets_BM, random)
            return Ragged(
                torch.from_numpy(offsets),
                torch.from_numpy(ids).long(),
                torch.from_numpy(log_weights),
            )
        named = targets_BM[targets_BM >= 0]
        best = np.concatenate([np.unique(named), self.best_of_batch(hidden_BD, targets_BM)])
        whole = np.array([0, best.size])
        _, ids, log_weights = self.beside(whole, best.astype(np.int32), named[None], random)
        order = np.argsort(ids)
        return Shared(torch.from_numpy(ids[order]).long(), torch.from_numpy(log_weights[order]))

    def beside(
        self, offsets: Int64, ids: Int32, targets_BM: Int64, random: Step
    ) -> tuple[Int64, Int32, Float64]:
        """CSR (offsets, ids, log-weights): S as given, and T beside it."""
        result: tuple[Int64, Int32, Float64] = with_outside(
            offsets,
            ids,
            targets_BM,
            self.n_uniform,
            np.uint64(random.key),
            np.uint64(random.step),
            np.uint64(0),
            self.scratch.zeros("taken", self.n_classes, np.uint8),
        )
        return result


def padded(targets: Targets) -> Int64:
    """int64 [B, M] on the CPU: each row's targets, padded by -1."""
    classes = targets.classes.cpu().numpy()
    if targets.single:
        return np.ascontiguousarray(classes[:, None])
    rows = targets.rows.cpu().numpy()
    counts_B = np.bincount(rows, minlength=targets.count)
    out = np.full((targets.count, int(counts_B.max(initial=1))), -1, np.int64)
    firsts_B = np.cumsum(counts_B) - counts_B
    out[rows, np.arange(len(rows)) - firsts_B[rows]] = classes
    return out


def root(n_classes: int, factor: float = 1.0) -> int:
    """factor sqrt V, at least 1 and at most V: what the papers' defaults are made of."""
    return min(n_classes, max(1, round(factor * math.sqrt(n_classes))))
