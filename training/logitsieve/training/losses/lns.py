"""LNS: negatives are the classes that collide with the target, or with the context, in hash tables.

Daghaghi et al. 2020, A Truly Constant-Time Distribution-Aware Negative Sampling. As published the
loss is an unweighted softmax over the target and the classes that collide: other classes are never
pushed away. Corrected, u uniform classes are always added, and each candidate is weighted by 1 over
its expected number of occurrences, pi_j + u / (V - 1), from either source; pi_j is its probability
of colliding, over the draw of the hash functions, with the rows as they were colliding.

Shape letters: B rows, D hidden size, V classes, L tables, E candidates of all rows, M targets of a
row.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Literal, NamedTuple, Unpack

import numpy as np
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.kernels.retrieval.simhash import LARGEST_BITS
from logitsieve.training.autograd.batch import RaggedCandidates, Targets, check_at_least
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.loss import LossOptions
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.losses.search_softmax import UniformSampler, padded, sqrt_classes
from logitsieve.training.structures.hashing import DWTA, Hashing, SimHash
from logitsieve.training.structures.tables import HashTables

BITS, TABLES = 9, 50  # the paper's K and L for SimHash
LEAST_TABLES = 20
BUCKET = 25  # classes of a bucket, about
PICK = 1  # number of the draw that picks the query among several targets


class DrawnIds(NamedTuple):
    """CSR ids of each row, and the share [B] of the eligible ids that was drawn."""

    offsets: Int64
    ids: Int32
    shares: Float64


class LNSSoftmax(SampledSoftmax):
    """query: "label" looks up the target's row in the tables, "embedding" the context.

    corrected: as above; without it `export` raises. hashing: "simhash" (K = 9, L = 50, or what
    `default_tables` gives for more classes) or "dwta" (K = 6, L = 400, windows of `window`
    coordinates); hashes is K, tables L. cap: candidates kept of those that collide, a
    uniform sample (default 5 sqrt V). n_uniform: u (default sqrt V); uncorrected, they are
    used only where nothing collides. Of several targets a row, one drawn for the step is the query.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        query: Literal["label", "embedding"] = "label",
        corrected: bool = True,
        hashing: Literal["simhash", "dwta"] = "simhash",
        hashes: int | None = None,
        tables: int | None = None,
        window: int = 4,
        cap: int | None = None,
        n_uniform: int | None = None,
        seed: int = 0,
        **common: Unpack[LossOptions],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        if query not in ("label", "embedding"):
            raise InvalidRequest("query", query, "label, embedding")
        self.by_label = query == "label"
        self.corrected = corrected
        self.cap = sqrt_classes(n_classes, 5) if cap is None else cap
        self.n_uniform = sqrt_classes(n_classes) if n_uniform is None else n_uniform
        check_at_least("cap", self.cap, 1)
        check_at_least("n_uniform", self.n_uniform, 1, n_classes)
        family: Hashing
        if hashing == "simhash":
            bits = default_bits(n_classes) if hashes is None else hashes
            tables = default_tables(bits) if tables is None else tables
            family = SimHash(in_features, tables=tables, bits=bits, seed=seed)
        elif hashing == "dwta":
            tables, hashes = 400 if tables is None else tables, 6 if hashes is None else hashes
            family = DWTA(in_features, tables=tables, hashes=hashes, window=window, seed=seed)
        else:
            raise InvalidRequest("hashing", hashing, "simhash, dwta")
        self.tables = HashTables(n_classes, family, keep=corrected)
        self.structure = self.tables
        self.sampler = UniformSampler(n_classes)
        self.rebuild()

    @property
    def unservable(self) -> str | None:
        return None if self.corrected else "a softmax over what collides (corrected=False)"

    def propose(self, hidden_BD: Tensor, targets: Targets, random: StepRng) -> RaggedCandidates:
        targets_BM = padded(targets)
        query_B = _picked(targets_BM, random)
        if self.by_label:
            buckets, vectors = self.tables.of_classes(query_B), None
        else:
            buckets, vectors = self.tables.of_contexts(hidden_BD)
        offsets, ids, sizes_B = self.tables.look_up(
            buckets, targets_BM, self.cap, random, fair=True
        )
        kept_B = np.diff(offsets)
        colliding = DrawnIds(offsets, ids, kept_B / np.maximum(sizes_B, 1))
        uniform = self._uniform(targets_BM, random)
        if not self.corrected:
            return _as_published(colliding, uniform)
        rows = self.tables.kept
        assert rows is not None, "corrected tables keep their rows"
        queries = rows[query_B] if vectors is None else self.tables.hashing.kept(vectors)
        return self._weighed(queries, rows, colliding, uniform)

    def _uniform(self, targets_BM: Int64, random: StepRng) -> DrawnIds:
        no_ids = np.zeros(len(targets_BM) + 1, np.int64), np.empty(0, np.int32)
        offsets, ids, _ = self.sampler.add(*no_ids, targets_BM, self.n_uniform, random)
        others_B = self.n_classes - _distinct(targets_BM)
        return DrawnIds(offsets, ids, np.diff(offsets) / np.maximum(others_B, 1))

    def _weighed(
        self, queries: np.ndarray, rows: np.ndarray, colliding: DrawnIds, uniform: DrawnIds
    ) -> RaggedCandidates:
        """Both kinds of candidates, each with weight 1 / (pi_j + u / (V - 1)); duplicates count.

        If only a share of the colliding ones was kept, each stands for 1 / share of them.
        """
        offsets, ids, places = _joined(colliding, uniform)
        chances_E = self.tables.hashing.chances(queries, rows, offsets, ids)
        log_weights_E = -np.log(chances_E + np.repeat(uniform.shares, np.diff(offsets)))
        kept_B = np.diff(colliding.offsets)
        log_weights_E[places] -= np.repeat(np.log(np.maximum(colliding.shares, 1e-300)), kept_B)
        return RaggedCandidates.from_numpy(offsets, ids, log_weights_E)


def default_bits(n_classes: int) -> int:
    """K = 9, or more for many classes: a bucket of SimHash then holds about BUCKET classes.

    With larger buckets the candidates of a batch would be nearly all classes.
    """
    return min(max(BITS, ceil(log2(n_classes / BUCKET))), LARGEST_BITS)


def default_tables(bits: int) -> int:
    """L = 50, less ten for each bit over 9, but at least 20.

    At V = 200,000 a step with 20 tables of 13 bits takes half of the time of one with 50 of 9.
    """
    return min(max(TABLES - 10 * (bits - BITS), LEAST_TABLES), TABLES)


def _picked(targets_BM: Int64, random: StepRng) -> Int64:
    if targets_BM.shape[1] == 1:
        return targets_BM[:, 0]
    counts_B = (targets_BM >= 0).sum(1)
    numbers_B = random.uniforms(len(targets_BM), PICK).numpy()
    picked: Int64 = targets_BM[np.arange(len(targets_BM)), (numbers_B * counts_B).astype(np.int64)]
    return picked


def _distinct(targets_BM: Int64) -> Int64:
    """The number of different targets of each row."""
    ordered = np.sort(targets_BM, axis=1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    count: Int64 = (first & (ordered >= 0)).sum(1)
    return count


def _joined(first: DrawnIds, second: DrawnIds) -> tuple[Int64, Int32, Int64]:
    """CSR (offsets, ids) of both, the first ones first in each row, and the places of those."""
    offsets = first.offsets + second.offsets
    places = np.arange(first.ids.size) + np.repeat(second.offsets[:-1], np.diff(first.offsets))
    others = np.arange(second.ids.size) + np.repeat(first.offsets[1:], np.diff(second.offsets))
    ids = np.empty(first.ids.size + second.ids.size, np.int32)
    ids[places], ids[others] = first.ids, second.ids
    return offsets, ids, places


def _as_published(colliding: DrawnIds, uniform: DrawnIds) -> RaggedCandidates:
    """The colliding classes, unweighted; the uniform ones in rows where nothing collides."""
    empty_B = np.diff(colliding.offsets) == 0
    counts_B = np.diff(uniform.offsets) * empty_B
    taken = np.repeat(empty_B, np.diff(uniform.offsets))
    filled = DrawnIds(
        np.concatenate([[0], np.cumsum(counts_B)]), uniform.ids[taken], uniform.shares
    )
    offsets, ids, _ = _joined(colliding, filled)
    return RaggedCandidates.from_numpy(offsets, ids, np.zeros(ids.size))
