"""Fits `lsh`: the cheapest reduction, bits, tables and probes at a given recall.

Levy, Chen, Ermon 2018, LSH Softmax. docs/heads.md describes the search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int64
from logitsieve.evaluation.precision import wilson
from logitsieve.index_builder.fitting import FitInputs, FitResult
from logitsieve.index_builder.reduction import (
    COSINE,
    MIPS,
    RANGED,
    Reduction,
    best_beta,
    draw_planes,
    hash_vectors,
    query_planes,
    squared_norms,
)
from logitsieve.kernels.retrieval.hash_tables import (
    LARGEST_BITS,
    bucket_tables,
    lsh_collisions,
    probe_order,
)
from logitsieve.utils.options import Progress

JUDGES = 512
WORDS = 1 << 14
SCALES = (1.0, 3.0)  # factors of the best beta; plain cosines gain from a larger one
LEAST_BITS = 4
PROBES = (1, 2, 4, 8)
LEAST_TABLES = 8
ROUNDING = 1e-6

# Costs of a lookup, in multiply-adds of an exact logit (65 ps), on one core with AVX-512.
PLANE = 0.4  # a multiply-add of a hash; planes are read in order
RANKED = 40.0  # to sort a plane by distance
BUCKET = 800.0  # to find a bucket, which is not in the cache
COLLISION = 16.0  # to count an id in it
FOUND = 15.0  # to store, count and clear an id


@dataclass(frozen=True, kw_only=True)
class Setting:
    ranges: int
    beta: float
    bits: int
    tables: int
    probes: int
    candidates: int
    recall: float
    scanned: float
    cost: float
    reaches: bool

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sort key: the cheapest with enough recall, or the one with the most recall."""
        if self.reaches:
            return False, self.cost, -self.recall
        return True, -self.recall, self.cost


_Tried = tuple[Reduction, int, int]


@dataclass(frozen=True, eq=False)
class _Search:
    inputs: FitInputs
    hidden_states: Float32  # [H, D]
    words: Int64  # [U], ascending
    labels: Int64  # [H] places of the exact best words in `words`

    @classmethod
    def over(cls, inputs: FitInputs) -> _Search:
        held, vocab_size = inputs.heldout.rows, inputs.vocab_size
        count = min(JUDGES, held)
        best = inputs.heldout_labels[np.arange(count) * held // count, 0].astype(np.int64)
        random = np.random.default_rng(inputs.config.seed)
        drawn = random.permutation(vocab_size)[: min(WORDS, vocab_size)]
        words = np.union1d(drawn, best)
        labels = np.searchsorted(words, best)
        return cls(inputs, inputs.heldout.sample(count), words, labels)

    @cached_property
    def needed(self) -> int:
        """The number of contexts that must be right to show `lsh_recall`, by Wilson's bound."""
        count, recall = len(self.labels), self.inputs.config.lsh_recall
        enough = [n for n in range(count) if wilson(n / count, count) >= recall]
        return enough[0] if enough else count

    def most_tables(self, bits: int) -> int:
        fitting = int(self.inputs.config.lsh_memory * self.matrix_memory / self.table_memory(bits))
        return min(self.inputs.config.lsh_tables, fitting, (2**31 - 1) // self.inputs.vocab_size)

    @property
    def matrix_memory(self) -> int:
        return self.inputs.vocab_size * (self.inputs.softmax.dim + 1)

    def table_memory(self, bits: int) -> int:
        return bits * (self.inputs.softmax.dim + 1) + (1 << bits) + self.inputs.vocab_size

    def bits_allowed(self) -> list[int]:
        useful = max(LEAST_BITS, self.inputs.vocab_size.bit_length() - 1)
        bits = range(LEAST_BITS, min(useful, LARGEST_BITS) + 1)
        allowed = [n for n in bits if self.most_tables(n)]
        if not allowed:
            needed = self.table_memory(LEAST_BITS) / self.matrix_memory
            least = f"{needed:.3g} or more: one table of {LEAST_BITS} bits"
            raise InvalidRequest("lsh_memory", self.inputs.config.lsh_memory, least)
        return allowed

    def best(self, reduction: Reduction, bits: int, probes: int) -> Setting:
        return min(self.settings(reduction, bits, probes), key=lambda setting: setting.rank)

    def settings(self, reduction: Reduction, bits: int, probes: int) -> Iterator[Setting]:
        planes = draw_planes(
            self.most_tables(bits), bits, self.inputs.softmax.dim, self.inputs.config.seed
        )
        codes = hash_vectors(reduction.vectors(self.words), planes, self.inputs.config.threads)
        own, shifts = query_planes(planes, reduction.beta)
        offsets, ids = bucket_tables(codes, bits)
        counts = np.zeros((len(self.hidden_states), len(self.words)), np.uint16)
        order, done = probe_order(bits, probes), 0
        for tables in _growing(len(planes)):
            lsh_collisions(
                self.hidden_states, own, shifts, offsets, ids, order, done, tables, counts
            )
            done = tables
            yield self._judged(reduction, bits, tables, order.size, counts)

    def _judged(
        self, reduction: Reduction, bits: int, tables: int, probes: int, counts_HU: np.ndarray
    ) -> Setting:
        limit, recall = self._tightest(counts_HU)
        reaches = recall * len(self.labels) >= self.needed - ROUNDING
        sizes = (counts_HU > 0).sum(axis=1)
        growth = self.inputs.vocab_size / len(self.words)
        distinct, entries = sizes.mean() * growth, counts_HU.sum() / len(counts_HU) * growth
        scanned = np.minimum(sizes, limit).mean() * growth
        dim, ranked = self.inputs.softmax.dim, RANKED * tables * bits * (probes > 1)
        cost = PLANE * tables * bits * dim + ranked + BUCKET * tables * probes
        cost += COLLISION * entries + FOUND * distinct + scanned * dim
        return Setting(
            ranges=reduction.ranges,
            beta=reduction.beta,
            bits=bits,
            tables=tables,
            probes=probes,
            candidates=int(np.ceil(limit * growth)) if reaches else 0,
            recall=recall,
            scanned=float(scanned / self.inputs.vocab_size),
            cost=float(cost / (self.inputs.vocab_size * dim)),
            reaches=reaches,
        )

    def _tightest(self, counts_HU: np.ndarray) -> tuple[int, float]:
        of_label = np.take_along_axis(counts_HU, self.labels[:, None], 1)
        above = (counts_HU > of_label).sum(axis=1)
        equal = (counts_HU == of_label).sum(axis=1)
        hit = of_label[:, 0] > 0

        def recall(limit: int) -> float:
            return float((np.clip((limit - above) / equal, 0, 1) * hit).mean())

        enough = self.needed - ROUNDING
        limits = range(1, len(self.words))
        least = 1 + bisect_left(limits, True, key=lambda n: recall(n) * len(hit) >= enough)
        return least, recall(least)


def _growing(most: int) -> list[int]:
    steps = [LEAST_TABLES * (2 + n % 2) << n // 2 >> 1 for n in range(2 * LARGEST_BITS)]
    return [*(tables for tables in steps if tables < most), most]


def fit_lsh(inputs: FitInputs) -> FitResult:
    search = _Search.over(inputs)
    bits = search.bits_allowed()
    reductions = _reductions(search)
    first = [(reduction, n, 1) for reduction in reductions for n in bits if n % 2 == 0]
    tried = [search.best(*point) for point in _reported(first, "lsh: reduction", inputs.progress)]
    reduction, n, _ = first[min(range(len(first)), key=lambda i: tried[i].rank)]
    # With more probes, buckets may be smaller.
    second = [
        (reduction, more, probes)
        for more in range(n - 1, n + 3)
        for probes in PROBES
        if more in bits and probes <= 1 << more and (reduction, more, probes) not in first
    ]
    tried += [search.best(*point) for point in _reported(second, "lsh: probes", inputs.progress)]
    best = min(tried, key=lambda setting: setting.rank)
    return FitResult(
        arrays=_arrays(search, reduction, best),
        summary={name: float(value) for name, value in asdict(best).items()},
        knobs={"probes": best.probes, "candidates": best.candidates},
    )


def _reported(tried: list[_Tried], stage: str, progress: Progress) -> Iterator[_Tried]:
    for done, point in enumerate(tried):
        progress(stage, done, len(tried))
        yield point
    progress(stage, len(tried), len(tried))


def _reductions(search: _Search) -> list[Reduction]:
    softmax = search.inputs.softmax
    squares_V = squared_norms(softmax)
    power = float(np.einsum("hd,hd->", search.hidden_states, search.hidden_states)) / len(
        search.hidden_states
    )
    beta = best_beta(squares_V, softmax.bias.astype(np.float64), power)
    return [
        Reduction.of(softmax, squares_V, ranges, scale * beta)
        for ranges in (COSINE, RANGED, MIPS)
        for scale in SCALES
    ]


def _arrays(search: _Search, reduction: Reduction, best: Setting) -> dict[str, np.ndarray]:
    config = search.inputs.config
    planes = draw_planes(best.tables, best.bits, search.inputs.softmax.dim, config.seed)
    rows = np.arange(search.inputs.vocab_size)
    codes = np.concatenate(
        [
            hash_vectors(reduction.vectors(rows[start : start + WORDS]), planes, config.threads)
            for start in range(0, len(rows), WORDS)
        ]
    )
    offsets, ids = bucket_tables(codes, best.bits)
    own, shifts = query_planes(planes, best.beta)
    return {"planes": own, "shifts": shifts, "offsets": offsets, "ids": ids}
