"""A softmax of the best classes and a uniform sample of the rest: top-k and LSH; base of k-means.

Z^ = sum over S e^x + (V - |S|) / |T| sum over T e^x: S holds the targets and the classes that a
search finds, T is uniform without replacement outside S (Levy, Chen, Ermon 2018, LSH Softmax,
equation 4, with V - |S| for its C - k). The loss is log Z^ - x_t, and equations 5 and 6 are its
gradient.

Shape letters: B rows, D hidden size, V classes, K classes of a row, M targets of a row, E
candidates of all rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from math import log2
from typing import TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.training.autograd.batch import (
    RaggedCandidates,
    SharedCandidates,
    Targets,
    check_at_least,
)
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.kernels.random_numbers import add_uniform_sample
from logitsieve.training.losses.loss import LossOptions
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.structures.hashing import LARGEST_TABLES, SimHash, StructuredSimHash
from logitsieve.training.structures.tables import HashTables, Scratch

Csr: TypeAlias = tuple[Int64, Int32]  # offsets [B+1] and ids of each row
FEW_ROWS = 16  # up to which a set for each row costs less than one product with all of them


class SearchOptions(LossOptions, total=False):
    """k: classes that a row's search gives, its targets aside (default 10 sqrt V).

    n_uniform: |T|. per_row: a set for each row, or one for the
    batch (None: by the number of rows). max_shared: classes of the batch's set, beside the targets
    (default: k). seed: of T and of the search.
    """

    k: int | None
    n_uniform: int | None
    per_row: bool | None
    max_shared: int | None
    seed: int


class SearchSoftmax(SampledSoftmax):
    """A method implements `default_n_uniform`, `search_rows` and `search_batch`."""

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
        **common: Unpack[LossOptions],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        k = sqrt_classes(n_classes, 10) if k is None else k
        check_at_least("k", k, 1, n_classes)
        n_uniform = min(n_classes, self.default_n_uniform(k)) if n_uniform is None else n_uniform
        check_at_least("n_uniform", n_uniform, 0, n_classes)
        max_shared = k if max_shared is None else max_shared
        check_at_least("max_shared", max_shared, 1, n_classes)
        self.k, self.n_uniform, self.max_shared = k, n_uniform, max_shared
        self.per_row = per_row
        self.sampler = UniformSampler(n_classes)

    @abstractmethod
    def default_n_uniform(self, k: int) -> int:
        """|T| where the user names none."""

    @abstractmethod
    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, random: StepRng) -> Csr:
        """The classes that each row finds, less its targets (padded by -1)."""

    @abstractmethod
    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        """At most `max_shared` ids, those that most rows find, without any row's targets."""

    def propose(
        self, hidden_BD: Tensor, targets: Targets, random: StepRng
    ) -> SharedCandidates | RaggedCandidates:
        targets_BM = padded(targets)
        per_row = targets.count <= FEW_ROWS if self.per_row is None else self.per_row
        if per_row:
            offsets, ids = self.search_rows(hidden_BD, targets_BM, random)
            return RaggedCandidates.from_numpy(
                *self.sampler.add(offsets, ids, targets_BM, self.n_uniform, random)
            )
        all_targets = targets_BM[targets_BM >= 0]
        best = self.search_batch(hidden_BD, targets_BM)
        ids = np.concatenate([np.unique(all_targets), best]).astype(np.int32)
        one_row = np.array([0, ids.size])
        _, ids, log_weights = self.sampler.add(
            one_row, ids, all_targets[None], self.n_uniform, random
        )
        order = np.argsort(ids)
        return SharedCandidates(
            torch.from_numpy(ids[order]).long(), torch.from_numpy(log_weights[order])
        )


class UniformSampler:
    """Uniform samples, without replacement, of the classes that a row does not have yet."""

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.scratch = Scratch()

    def add(
        self, offsets: Int64, ids: Int32, targets_BM: Int64, count: int, random: StepRng
    ) -> tuple[Int64, Int32, Float64]:
        """CSR (offsets, ids, log-weights): each row's ids, and `count` others beside them.

        The others are no targets of the row (padded by -1) either.
        """
        key, step = np.uint64(random.key), np.uint64(random.step)
        taken = self.scratch.zeros("taken", self.n_classes, np.uint8)
        result: tuple[Int64, Int32, Float64] = add_uniform_sample(
            offsets, ids, targets_BM, count, key, step, np.uint64(0), taken
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


def sqrt_classes(n_classes: int, factor: float = 1.0) -> int:
    """factor sqrt V, at least 1 and at most V: the papers' defaults are multiples of it."""
    return min(n_classes, max(1, round(factor * math.sqrt(n_classes))))


CHUNK = 8192  # classes whose logits are held at once


class TopKSoftmax(SearchSoftmax):
    """The k largest logits and the targets, and nothing for the rest unless n_uniform > 0.

    The baseline "TopK-softmax" of the LNS paper (Daghaghi et al. 2020). All logits are computed to
    find the k, so only the backward pass is cheaper than the full softmax's. Biased: Z never sees
    the rest. With n_uniform it is LSH Softmax with a perfect search.
    """

    def default_n_uniform(self, k: int) -> int:
        return 0

    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, random: StepRng) -> Csr:
        best_BK = self._best(hidden_BD)
        target_BK = (best_BK[:, :, None] == targets_BM[:, None, :]).any(-1)
        offsets = np.concatenate([[0], np.cumsum((~target_BK).sum(1))])
        return offsets, best_BK[~target_BK].astype(np.int32)

    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        ids, votes = np.unique(self._best(hidden_BD), return_counts=True)
        other = ~np.isin(ids, targets_BM)
        ids, votes = ids[other], votes[other]
        best = ids[np.argsort(-votes, kind="stable")[: self.max_shared]]
        return np.sort(best).astype(np.int32)

    def _best(self, hidden_BD: Tensor) -> Int64:
        """int64 [B, K]: ids of the largest logits, ascending. Holds one chunk of logits."""
        weight, bias = self.classes.detached()
        values = hidden_BD.new_empty(len(hidden_BD), 0)
        ids = torch.empty(len(hidden_BD), 0, dtype=torch.int64, device=hidden_BD.device)
        for start in range(0, self.n_classes, CHUNK):
            x = self._chunk_logits(hidden_BD, weight[start : start + CHUNK], bias, start)
            chunk_ids = torch.arange(start, start + x.shape[1], device=x.device).expand_as(x)
            values, ids = torch.cat([values, x], 1), torch.cat([ids, chunk_ids], 1)
            values, places = values.topk(min(self.k, values.shape[1]), dim=1, sorted=False)
            ids = ids.gather(1, places)
        ascending: Int64 = ids.sort(dim=1).values.cpu().numpy()
        return ascending

    def _chunk_logits(
        self, hidden_BD: Tensor, weight: Tensor, bias: Tensor | None, start: int
    ) -> Tensor:
        # weight: the rows of the classes from `start` on
        weight = weight.to(hidden_BD.dtype)
        if self.logit_form.scale is not None:
            weight = torch.nn.functional.normalize(weight, dim=-1)
        x = hidden_BD @ weight.T
        if bias is not None:
            x += bias[start : start + len(weight)].view(-1).to(x.dtype)
        return x


TABLES = 128
LEAST_BITS = 4
MOST_BITS = 14


def default_bits(n_classes: int, tables: int, k: int) -> int:
    """Bits for which the buckets of a context unlike all classes hold some 4 k ids in all.

    Counts of collisions choose k of them: with finer buckets most ids would collide once.
    """
    bits = round(log2(max(n_classes * tables / (4 * k), 1)))
    return min(max(bits, LEAST_BITS), MOST_BITS)


class LSHSoftmax(SearchSoftmax):
    """S: the k classes that most tables find. n_uniform: default sqrt V.

    Levy, Chen, Ermon 2018, Algorithm 1. The target is always in S: without it the estimated
    probability of the target can exceed 1.

    tables: their number, each of `bits` hyperplanes. mips: hash for h.w + b instead of the angle
    between [h; 1] and [w; b]. structured: hyperplanes from Hadamard matrices, which find as much as
    independent ones at a fraction of the cost.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        tables: int = TABLES,
        bits: int | None = None,
        mips: bool = False,
        structured: bool = True,
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **options)
        check_at_least("tables", tables, 1, LARGEST_TABLES)
        bits = default_bits(n_classes, tables, self.k) if bits is None else bits
        family = StructuredSimHash if structured else SimHash
        hashing = family(in_features, tables=tables, bits=bits, seed=self.random.seed)
        self.tables = HashTables(n_classes, hashing, mips=mips)
        self.structure = self.tables
        self.rebuild()

    def default_n_uniform(self, k: int) -> int:
        return sqrt_classes(self.n_classes)

    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, random: StepRng) -> Csr:
        buckets, _ = self.tables.of_contexts(hidden_BD)
        offsets, ids, _ = self.tables.look_up(buckets, targets_BM, self.k, random)
        return offsets, ids

    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        buckets, _ = self.tables.of_contexts(hidden_BD)
        return self.tables.look_up_batch(buckets, targets_BM, self.max_shared)
