"""log Z per row: what turns exact logits into log-probabilities.

Shape letters: B batch rows, D hidden size, V vocabulary, S scanned rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from logitsieve.heads.base import Head
from logitsieve.kernels.csr import csr_log_sum_exp
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Float32

# Logits of all V at a time: 16 MiB of float32, whatever the number of rows asked for.
LOGITS_AT_ONCE = 1 << 22

# (head, exact head, hidden [B, D], k, V) -> log Z [B]
Normalizer = Callable[[Head, Head, Float32, int, int], Float32]


def over_candidates(head: Head, exact: Head, hidden: Float32, k: int, vocab_size: int) -> Float32:
    """log sum exp over the S rows that `head` scanned: the softmax of the papers' beam search.

    A token outside has p = 0, and log Z is a lower bound of the full one.
    """
    found = head.candidates(hidden, k)
    log_z = np.empty(len(hidden), np.float32)
    csr_log_sum_exp(found.offsets, found.logits, log_z)
    return log_z


def over_vocabulary(head: Head, exact: Head, hidden: Float32, k: int, vocab_size: int) -> Float32:
    """log sum exp over all V logits, O(B V D); rows are taken a slice at a time to bound memory."""
    step = max(1, LOGITS_AT_ONCE // vocab_size)
    slices = (hidden[start : start + step] for start in range(0, len(hidden), step))
    return np.concatenate([over_candidates(exact, exact, rows, k, vocab_size) for rows in slices])


NORMALIZERS: dict[str, Normalizer] = {
    "candidates": over_candidates,
    "exact": over_vocabulary,
}


def find_normalizer(name: str) -> Normalizer:
    """The normalizer called `name`; InvalidRequest names those that are built."""
    try:
        return NORMALIZERS[name]
    except KeyError:
        raise InvalidRequest("normalizer", name, ", ".join(NORMALIZERS)) from None
