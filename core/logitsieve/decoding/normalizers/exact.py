"""log Z over all V logits, O(B V D).

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.decoding.logit_edits import Edits
from logitsieve.decoding.normalizers.base import (
    LogZ,
    Normalizer,
    Prices,
    edited_slices,
    log_sum_exp_all,
)
from logitsieve.heads._base.head import Head
from logitsieve.heads.exact import ExactHead
from logitsieve.index import Index


class ExactNormalizer(Normalizer):
    """The full softmax's log Z, whatever head answers."""

    name, code, is_exact = "exact", 5, True

    def needs(self, head: Head) -> str:
        """The exact head, which every index has."""
        return "exact"

    def log_z(
        self,
        index: Index,
        head: Head,
        hidden: Float32,
        k: int,
        edits: Edits | None,
        scale: float,
    ) -> LogZ:
        """A few rows at a time where they are edited."""
        exact = self._exact(index)
        if edits is None:
            return LogZ(exact.log_z(hidden, scale))
        slices = edited_slices(index, hidden, edits, lambda rows: exact.candidates(rows, 1).logits)
        return LogZ(np.concatenate([log_sum_exp_all(logits, scale) for _, logits in slices]))

    def log_z64(self, index: Index, hidden: Float32, edits: Edits, scale: float) -> Float64:
        """[B] the same before it is rounded; no row of `edits` has an allow list."""
        seeds = np.zeros(len(hidden), np.uint64)
        return self._exact(index).draw(hidden, 0, seeds, 0, scale, edits[:3])[1]

    def cost(self, prices: Prices) -> float:
        """A pass over W."""
        return prices.pass_us("exact")

    def _exact(self, index: Index) -> ExactHead:
        return cast(ExactHead, index.head("exact"))
