"""LSH Softmax: the classes that collide with the context in hash tables, and a uniform sample.

Levy, Chen, Ermon 2018, LSH Softmax: Sub-Linear Learning and Inference of the Softmax Layer in Deep
Architectures, Algorithm 1. The target is always in S: without it the estimated probability of the
target can exceed 1.
"""

from __future__ import annotations

from math import log2
from typing import Unpack

from torch import Tensor

from logitsieve.api.results import Int32, Int64
from logitsieve.training.autograd.batch import check_at_least
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.search_softmax import SearchOptions, SearchSoftmax, sqrt_classes
from logitsieve.training.structures.hashing import LARGEST_TABLES, SimHash, StructuredSimHash
from logitsieve.training.structures.tables import HashTables

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

    def search_rows(
        self, hidden_BD: Tensor, targets_BM: Int64, random: StepRng
    ) -> tuple[Int64, Int32]:
        buckets, _ = self.tables.of_contexts(hidden_BD)
        offsets, ids, _ = self.tables.look_up(buckets, targets_BM, self.k, random)
        return offsets, ids

    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        buckets, _ = self.tables.of_contexts(hidden_BD)
        return self.tables.look_up_batch(buckets, targets_BM, self.max_shared)
