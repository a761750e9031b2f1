"""An estimate of log Z from the S rows that the head scans and l ids sampled from all others.

Levy, Chan, Ermon 2018, LSH Softmax, equation 4. l = 10 V / S.

Shape letters: B batch rows, D hidden size, V vocabulary, S scanned rows.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from logitsieve.api.results import Float32, UInt64
from logitsieve.decoding.logit_edits import Edits, edit_candidates
from logitsieve.decoding.normalizers.base import LogZ, Normalizer, Prices
from logitsieve.heads._base.head import Head
from logitsieve.index import Index
from logitsieve.kernels.sampling.sampled_tail import sampled_log_z

SAMPLED_SHARE = 10  # candidates times sampled ids, over V: k = 10 sqrt(V), l = sqrt(V) are a pair
SAMPLED_ROOTS = 20  # logits beside the head's own, in square roots of V: what it is taken to cost


class SampledNormalizer(Normalizer):
    """An estimate with its standard error; what is sampled depends on the row of hidden alone."""

    name, code = "sampled", 3

    def log_z(
        self,
        index: Index,
        head: Head,
        hidden: Float32,
        k: int,
        edits: Edits | None,
        scale: float,
    ) -> LogZ:
        """`error` is the standard error that the sample shows, of log Z."""
        if head.proves:  # it looks at few rows unless it is asked for many
            k = min(index.vocab_size, max(k, round(SAMPLED_SHARE * index.vocab_size**0.5)))
        listed = edit_candidates(head.candidates(hidden, k), edits, index.vocab_size)
        log_z, address = (
            np.empty((len(hidden), 2), np.float32),
            index.softmax.descriptor.ctypes.data,
        )
        sizes = np.ceil(SAMPLED_SHARE * index.vocab_size / np.maximum(listed.answerable(), 1))
        sizes = np.minimum(sizes, index.vocab_size).astype(np.int64)
        if edits is not None:
            sizes[edits.allow_list] = 0  # nothing else may be answered
        sampled_log_z(address, hidden, _seeds(hidden), scale, *listed, sizes, log_z)
        return LogZ(log_z[:, 0].copy(), error=log_z[:, 1].copy())

    def cost(self, prices: Prices) -> float:
        """A second scan, and the sampled logits."""
        return prices.head_us + SAMPLED_ROOTS * sqrt(prices.vocab_size) * prices.us_per_logit


def _seeds(hidden: Float32) -> UInt64:
    """[B] seeds that depend on all bits of a row."""
    bits = hidden.view(np.uint32).astype(np.uint64)
    odd = np.arange(1, 2 * hidden.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((bits * (odd | np.uint64(1))).sum(axis=1, dtype=np.uint64))
