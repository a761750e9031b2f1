"""LSH Softmax: the classes that share buckets with the context, and a uniform sample of the rest.

Levy, Chen, Ermon 2018, LSH Softmax, Algorithm 1.
"""

from dataclasses import dataclass
from math import log2

from torch import Tensor

from logitsieve.api.results import Int32, Int64
from logitsieve.training.autograd.batch import StepRng
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.proposals.proposal import Csr, SearchProposal, sqrt_classes
from logitsieve.training.structures.hashing import LARGEST_TABLES, SimHash, StructuredSimHash
from logitsieve.training.structures.tables import HashTables
from logitsieve.utils.options import option

LEAST_BITS, MOST_BITS = 4, 14


@dataclass(kw_only=True, eq=False)
class LSH(SearchProposal):
    """S has the k classes that most tables find. n_uniform is sqrt V by default."""

    tables: int = option(128, "Hash tables.", 1, LARGEST_TABLES)
    bits: int | None = option(
        None, "Hyperplanes of a table; none: a row's buckets hold about 4 k ids in all.", 1
    )
    mips: bool = option(False, "Hash for h.w + b instead of the angle between [h; 1] and [w; b].")
    structured: bool = option(
        True, "Hyperplanes from Hadamard matrices: as selective as independent ones, cheaper."
    )

    def start(self, classes: ClassWeights, seed: int) -> None:
        super().start(classes, seed)
        bits = self.bits
        if bits is None:
            bits = default_bits(self.n_classes, self.tables, self.sizes.k)
        family = StructuredSimHash if self.structured else SimHash
        hashing = family(classes.embedding_dim, tables=self.tables, bits=bits, seed=seed)
        self.index = self.hashed = HashTables(self.n_classes, hashing, mips=self.mips)

    def default_n_uniform(self, k: int) -> int:
        return sqrt_classes(self.n_classes)

    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, rng: StepRng) -> Csr:
        buckets, _ = self.hashed.of_contexts(hidden_BD)
        offsets, ids, _ = self.hashed.look_up(buckets, targets_BM, self.sizes.k, rng)
        return offsets, ids

    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        buckets, _ = self.hashed.of_contexts(hidden_BD)
        return self.hashed.look_up_batch(buckets, targets_BM, self.sizes.max_shared)


def default_bits(n_classes: int, tables: int, k: int) -> int:
    """Return bits so that the buckets of a context unlike all classes have about 4 k ids."""
    bits = round(log2(max(n_classes * tables / (4 * k), 1)))
    return min(max(bits, LEAST_BITS), MOST_BITS)
