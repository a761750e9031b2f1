"""Normalizers: log Z per row, which turns exact logits into log-probabilities.

log Z is the logarithm of the sum of e^{scale x} over all logits x, or over what edits leave of
them; `scale` is 1 / temperature.

Shape letters: B batch rows, D hidden size, V vocabulary, T targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.decoding.logit_edits import Edits, target_logits
from logitsieve.heads._base.head import Head
from logitsieve.index import Index
from logitsieve.kernels.topk.csr import csr_log_sum_exp

# Logits of all V at a time: 16 MiB of float32, whatever the number of rows.
LOGITS_AT_ONCE = 1 << 22


class LogZ(NamedTuple):
    """log of the sum of exp(scale x logit), for each row."""

    value: Float32 | None  # [B]
    low: Float32 | None = None  # [B] it is proven to lie between these
    high: Float32 | None = None  # [B]
    error: Float32 | None = None  # [B] the standard error of an estimate


class Prices(NamedTuple):
    """Microseconds a row: what the cost of a log Z is estimated from."""

    head_us: float  # the answering head's top k
    us_per_logit: float
    vocab_size: int
    pass_us: Callable[[str], float]  # name of a head -> the time of a pass over all V as it makes


class Normalizer(ABC):
    """A way to find log Z. Stateless; any number of threads may call it."""

    name: ClassVar[str]
    code: ClassVar[int]  # in decoder.proto's enum Normalizer
    is_exact: ClassVar[bool] = False  # the value is the full softmax's, computed
    has_bounds: ClassVar[bool] = False  # log Z is proven to lie between `low` and `high`

    def needs(self, head: Head) -> str:
        """Name of the head that the index must have beside the answering one; "" for none."""
        return ""

    @abstractmethod
    def log_z(
        self,
        index: Index,
        head: Head,
        hidden: Float32,
        k: int,
        edits: Edits | None,
        scale: float,
    ) -> LogZ:
        """log Z of hidden [B, D], B >= 1, over all V or what `edits` leave; `head` answers for k.

        InvalidRequest if the index lacks what the normalizer needs.
        """

    @abstractmethod
    def cost(self, prices: Prices) -> float:
        """Microseconds that it takes a row, beside the top k."""

    def target_logits(
        self, index: Index, head: Head, hidden: Float32, targets: Int32, edits: Edits | None
    ) -> tuple[LogZ, Float32 | Float64]:
        """log Z, and the logits [B, T] of `targets` that belong to it; -inf for those of p = 0."""
        logits = target_logits(index.softmax, hidden, targets, edits)
        return self.log_z(index, head, hidden, 1, edits, 1.0), logits

    def proven(self, log_z: LogZ, rows: int) -> Bool:
        """[B] whether `log_z` is the full softmax's, computed or proven."""
        if log_z.low is None or log_z.high is None:
            return np.full(rows, self.is_exact)
        return np.asarray(log_z.low == log_z.high)

    def source(self, index: Index, head: Head) -> Head:
        """The head that it reads: the index's that it needs, or else the answering one."""
        needed = self.needs(head)
        if not needed:
            return head
        if needed not in index.heads:
            allowed = f"one that needs no head {needed!r}: the index has {', '.join(index.heads)}"
            raise InvalidRequest("normalizer", self.name, allowed)
        return index.head(needed)


def edited_slices(
    index: Index, hidden: Float32, edits: Edits | None, logits_of: Callable[[Float32], Float32]
) -> Iterator[tuple[slice, Float32]]:
    """All V logits of some rows at a time, after edits: no more than LOGITS_AT_ONCE, or one row."""
    step = max(1, LOGITS_AT_ONCE // index.vocab_size)
    for start in range(0, len(hidden), step):
        rows = slice(start, min(start + step, len(hidden)))
        logits = logits_of(hidden[rows]).reshape(-1, index.vocab_size)
        if edits is not None:
            edits.rows(np.arange(rows.start, rows.stop)).apply_to_all(logits)
        yield rows, logits


def log_sum_exp(offsets: Int64, logits: Float32 | Float64, scale: float) -> Float32:
    """log sum exp of CSR rows."""
    scaled = logits if scale == 1.0 else logits * scale
    log_z = np.empty(len(offsets) - 1, np.float32)
    csr_log_sum_exp(offsets, np.ascontiguousarray(scaled, np.float32), log_z)
    return log_z


def log_sum_exp_all(logits: Float32, scale: float) -> Float32:
    """log sum exp of each row of [B, V]."""
    rows, vocab_size = logits.shape
    return log_sum_exp(np.arange(rows + 1) * vocab_size, logits.ravel(), scale)
