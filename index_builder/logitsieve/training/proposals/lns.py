"""LNS: negatives are the classes that collide with the target, or the context, in hash tables.

Daghaghi et al. 2020, A Truly Constant-Time Distribution-Aware Negative Sampling. The published loss
is an unweighted softmax over the target and the colliding classes. The corrected one adds u uniform
classes, and divides each term by its expected count, pi_j + u / (V - 1), where pi_j is the
probability that the row, as it was hashed, collides.
"""

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal, NamedTuple, get_args

import numpy as np
from torch import Tensor

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.kernels.retrieval.hash_tables import LARGEST_BITS
from logitsieve.training.autograd.batch import RaggedCandidates, StepRng, Targets
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.proposals.proposal import Proposal, sqrt_classes, with_uniform
from logitsieve.training.structures.hashing import DWTA, Hashing, SimHash
from logitsieve.training.structures.tables import HashTables
from logitsieve.utils.options import option

BITS, TABLES = 9, 50
LEAST_TABLES = 20
BUCKET = 25
PICK = 1


class DrawnIds(NamedTuple):
    """CSR ids of each row, and the share [B] that was drawn of those eligible."""

    offsets: Int64
    ids: Int32
    shares: Float64


QueryName = Literal["label", "embedding"]
HashingName = Literal["simhash", "dwta"]


@dataclass(kw_only=True, eq=False)
class LNS(Proposal):
    """The classes that collide with a query, which is one of the row's targets or the context."""

    query: QueryName = option("label", "What is looked up: the target's row, or the context.")
    corrected: bool = option(
        True, "Weighted by the probability of colliding; false: as published, not servable."
    )
    hashing: HashingName = option("simhash", "The family of hash functions.")
    hashes: int | None = option(None, "K, hashes of a table; none: by V, or 6 for dwta.")
    tables: int | None = option(None, "L; none: by K, or 400 for dwta.")
    window: int = option(4, "Coordinates of a window of dwta.")
    cap: int | None = option(
        None, "Colliding classes kept, a uniform sample of them; none: 5 sqrt V.", 1
    )
    n_uniform: int | None = option(
        None, "Uniform classes; uncorrected, only where nothing collides. None: sqrt V.", 1
    )

    def start(self, classes: ClassWeights, seed: int) -> None:
        super().start(classes, seed)
        for name, value, allowed in (
            ("query", self.query, get_args(QueryName)),
            ("hashing", self.hashing, get_args(HashingName)),
        ):
            if value not in allowed:
                raise InvalidRequest(name, value, ", ".join(allowed))
        if not self.corrected:
            self.unservable = "a softmax over what collides (corrected=False)"
        count = self.n_classes
        self.most = sqrt_classes(count, 5) if self.cap is None else self.cap
        self.uniform = sqrt_classes(count) if self.n_uniform is None else self.n_uniform
        whole("n_uniform", self.uniform, 1, count)
        family = self._family(classes.embedding_dim, seed)
        self.index = self.hashed = HashTables(count, family, keep=self.corrected)

    def _family(self, dim: int, seed: int) -> Hashing:
        tables, hashes = self.tables, self.hashes
        if self.hashing == "dwta":
            tables, hashes = 400 if tables is None else tables, 6 if hashes is None else hashes
            return DWTA(dim, tables=tables, hashes=hashes, window=self.window, seed=seed)
        bits = default_bits(self.n_classes) if hashes is None else hashes
        tables = default_tables(bits) if tables is None else tables
        return SimHash(dim, tables=tables, bits=bits, seed=seed)

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> RaggedCandidates:
        targets_BM = targets.padded()
        query_B = _picked(targets_BM, rng)
        if self.query == "label":
            buckets, vectors = self.hashed.of_classes(query_B), None
        else:
            buckets, vectors = self.hashed.of_contexts(hidden_BD)
        offsets, ids, sizes_B = self.hashed.look_up(buckets, targets_BM, self.most, rng, fair=True)
        kept_B = np.diff(offsets)
        colliding = DrawnIds(offsets, ids, kept_B / np.maximum(sizes_B, 1))
        uniform = self._uniform(targets_BM, rng)
        if not self.corrected:
            return _as_published(colliding, uniform)
        rows = self.hashed.kept
        assert rows is not None, "corrected tables keep their rows"
        queries = rows[query_B] if vectors is None else self.hashed.hashing.kept(vectors)
        return self._weighed(queries, rows, colliding, uniform)

    def _uniform(self, targets_BM: Int64, rng: StepRng) -> DrawnIds:
        no_ids = np.zeros(len(targets_BM) + 1, np.int64), np.empty(0, np.int32)
        offsets, ids, _ = with_uniform(*no_ids, targets_BM, self.uniform, self.n_classes, rng)
        others_B = self.n_classes - _distinct(targets_BM)
        return DrawnIds(offsets, ids, np.diff(offsets) / np.maximum(others_B, 1))

    def _weighed(
        self, queries: np.ndarray, rows: np.ndarray, colliding: DrawnIds, uniform: DrawnIds
    ) -> RaggedCandidates:
        """Weight by 1 over the expected count, and colliding classes by 1 / share, too."""
        offsets, ids, places = _joined(colliding, uniform)
        chances_E = self.hashed.hashing.chances(queries, rows, offsets, ids)
        log_weights_E = -np.log(chances_E + np.repeat(uniform.shares, np.diff(offsets)))
        kept_B = np.diff(colliding.offsets)
        log_weights_E[places] -= np.repeat(np.log(np.maximum(colliding.shares, 1e-300)), kept_B)
        return RaggedCandidates.from_numpy(offsets, ids, log_weights_E)


def default_bits(n_classes: int) -> int:
    """Return K = 9, or more so that a bucket has about BUCKET classes."""
    return min(max(BITS, ceil(log2(n_classes / BUCKET))), LARGEST_BITS)


def default_tables(bits: int) -> int:
    """Return L = 50, less ten for each bit over 9, at least 20, which halves the time."""
    return min(max(TABLES - 10 * (bits - BITS), LEAST_TABLES), TABLES)


def _picked(targets_BM: Int64, rng: StepRng) -> Int64:
    if targets_BM.shape[1] == 1:
        return targets_BM[:, 0]
    counts_B = (targets_BM >= 0).sum(1)
    numbers_B = rng.uniforms(len(targets_BM), PICK).numpy()
    picked: Int64 = targets_BM[np.arange(len(targets_BM)), (numbers_B * counts_B).astype(np.int64)]
    return picked


def _distinct(targets_BM: Int64) -> Int64:
    ordered = np.sort(targets_BM, axis=1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    count: Int64 = (first & (ordered >= 0)).sum(1)
    return count


def _joined(first: DrawnIds, second: DrawnIds) -> tuple[Int64, Int32, Int64]:
    offsets = first.offsets + second.offsets
    places = np.arange(first.ids.size) + np.repeat(second.offsets[:-1], np.diff(first.offsets))
    others = np.arange(second.ids.size) + np.repeat(first.offsets[1:], np.diff(second.offsets))
    ids = np.empty(first.ids.size + second.ids.size, np.int32)
    ids[places], ids[others] = first.ids, second.ids
    return offsets, ids, places


def _as_published(colliding: DrawnIds, uniform: DrawnIds) -> RaggedCandidates:
    """Return the colliding classes, or uniform ones in rows without any, unweighted."""
    empty_B = np.diff(colliding.offsets) == 0
    counts_B = np.diff(uniform.offsets) * empty_B
    taken = np.repeat(empty_B, np.diff(uniform.offsets))
    filled = DrawnIds(
        np.concatenate([[0], np.cumsum(counts_B)]), uniform.ids[taken], uniform.shares
    )
    offsets, ids, _ = _joined(colliding, filled)
    return RaggedCandidates.from_numpy(offsets, ids, np.zeros(ids.size))
