"""log Z over the rows of W that the answering head scanned, and over edited ids.

Shape letters: B batch rows, S scanned rows, V vocabulary, T targets.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.decoding.logit_edits import (
    Edits,
    ListedLogits,
    among,
    edit_candidates,
    keys_of,
    target_logits,
)
from logitsieve.decoding.normalizers.base import LogZ, Normalizer, Prices, log_sum_exp
from logitsieve.heads._base.head import Head
from logitsieve.index import Index


class CandidatesNormalizer(Normalizer):
    """log sum exp over the S rows that the head scanned: the softmax of the papers' beam search.

    A token outside has p = 0, and log Z is a lower bound of the full one.
    """

    name, code = "candidates", 1

    def log_z(
        self,
        index: Index,
        head: Head,
        hidden: Float32,
        k: int,
        edits: Edits | None,
        scale: float,
    ) -> LogZ:
        """O(S) a row beside the scan."""
        listed = edit_candidates(head.candidates(hidden, k), edits, index.vocab_size)
        return LogZ(log_sum_exp(listed.offsets, listed.logits, scale))

    def target_logits(
        self, index: Index, head: Head, hidden: Float32, targets: Int32, edits: Edits | None
    ) -> tuple[LogZ, Float32 | Float64]:
        """-inf for targets that the head does not look at."""
        logits = target_logits(index.softmax, hidden, targets, edits)
        listed = edit_candidates(head.candidates(hidden, 1), edits, index.vocab_size)
        inside = _inside(targets, listed, index.vocab_size)
        log_z = LogZ(log_sum_exp(listed.offsets, listed.logits, 1.0))
        return log_z, np.where(inside, logits, -np.inf)

    def cost(self, prices: Prices) -> float:
        """A second scan by the head."""
        return prices.head_us


def _inside(targets: Int32, listed: ListedLogits, vocab_size: int) -> np.ndarray:
    """[B, T] whether a target is among its row's ids."""
    keys = np.arange(len(targets))[:, None] * vocab_size + targets
    return among(keys, np.sort(keys_of(listed.offsets, listed.ids, vocab_size)))
