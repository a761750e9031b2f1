"""The bases of all proposals, which draw the negatives of a sampled softmax."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.checks import whole
from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.training.autograd.batch import (
    Candidates,
    RaggedCandidates,
    SharedCandidates,
    StepRng,
    Targets,
)
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.kernels.random_numbers import add_uniform_sample
from logitsieve.training.structures.track import RowIndex
from logitsieve.utils.options import check_ranges, option

Csr: TypeAlias = tuple[Int64, Int32]  # offsets [B+1] and ids of each row
FEW_ROWS = 16  # for so few rows, a set for each is cheaper than one shared by all


@dataclass(kw_only=True, eq=False)
class Proposal(ABC):
    """Draws candidates; its fields are its options.

    index: an index that `propose` searches, updated by the loss. unservable: the name of the model
    if it is not a softmax of h.w + b.
    """

    def __post_init__(self) -> None:
        self.index: RowIndex | None = None
        self.unservable: str | None = None
        check_ranges(self)

    def start(self, classes: ClassWeights, seed: int) -> None:
        """Prepare to draw for `classes`, whose weights a tie may exchange, and make `index`."""
        self.classes = classes

    @property
    def n_classes(self) -> int:
        return self.classes.num_embeddings

    @abstractmethod
    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> Candidates:
        """Return candidates; hidden_BD is detached, and normalised if the logits are."""


class SetSizes(NamedTuple):
    """Sizes: a row's S without its targets, T, and a batch's S without targets."""

    k: int
    n_uniform: int
    max_shared: int


@dataclass(kw_only=True, eq=False)
class SearchProposal(Proposal):
    """The classes that a search finds for a context, and a uniform sample of the others.

    The loss is log Z^ - x_t with Z^ = sum over S e^x + (V - |S|) / |T| sum over T e^x. S has the
    targets and the classes found; T is uniform outside of S (Levy, Chen, Ermon 2018, equations 4 to
    6, with V - |S| for C - k).
    """

    k: int | None = option(None, "Classes found for a row, without targets; none: 10 sqrt V.", 1)
    n_uniform: int | None = option(None, "|T|; none: by the method.", 0)
    per_row: bool | None = option(
        None, "A set for each row, or one for the batch; none: for each of 16 rows or fewer."
    )
    max_shared: int | None = option(
        None, "Classes found for the batch, without targets; none: k.", 1
    )

    def start(self, classes: ClassWeights, seed: int) -> None:
        super().start(classes, seed)
        most = self.n_classes
        k = sqrt_classes(most, 10) if self.k is None else self.k
        n_uniform = self.n_uniform
        if n_uniform is None:
            n_uniform = min(most, self.default_n_uniform(k))
        self.sizes = SetSizes(k, n_uniform, k if self.max_shared is None else self.max_shared)
        for name, size in self.sizes._asdict().items():
            whole(name, size, 0, most)

    @abstractmethod
    def default_n_uniform(self, k: int) -> int:
        """Return the default of |T|."""

    @abstractmethod
    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, rng: StepRng) -> Csr:
        """Return the classes found for each row, without its targets (padded by -1)."""

    @abstractmethod
    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        """Return at most `max_shared` classes that most rows find, without targets."""

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> Candidates:
        targets_BM, count = targets.padded(), self.sizes.n_uniform
        per_row = targets.count <= FEW_ROWS if self.per_row is None else self.per_row
        if per_row:
            offsets, ids = self.search_rows(hidden_BD, targets_BM, rng)
            return RaggedCandidates.from_numpy(
                *with_uniform(offsets, ids, targets_BM, count, self.n_classes, rng)
            )
        all_targets = targets_BM[targets_BM >= 0]
        best = self.search_batch(hidden_BD, targets_BM)
        ids = np.concatenate([np.unique(all_targets), best]).astype(np.int32)
        one_row = np.array([0, ids.size])
        _, ids, log_weights = with_uniform(
            one_row, ids, all_targets[None], count, self.n_classes, rng
        )
        order = np.argsort(ids)
        return SharedCandidates(
            torch.from_numpy(ids[order]).long(), torch.from_numpy(log_weights[order])
        )


def with_uniform(
    offsets: Int64, ids: Int32, targets_BM: Int64, count: int, n_classes: int, rng: StepRng
) -> tuple[Int64, Int32, Float64]:
    """Add `count` uniform ids to each row, without repetitions and targets, in CSR form."""
    key, step = np.uint64(rng.key), np.uint64(rng.step)
    result: tuple[Int64, Int32, Float64] = add_uniform_sample(
        offsets, ids, targets_BM, count, key, step, n_classes
    )
    return result


def sqrt_classes(n_classes: int, factor: float = 1.0) -> int:
    """Return factor * sqrt V, within 1 .. V."""
    return min(n_classes, max(1, round(factor * math.sqrt(n_classes))))
