"""log Z per row: what turns exact logits into log-probabilities.

Shape letters: B batch rows, D hidden size, V vocabulary, S scanned rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from logitsieve.decoding.edits import Edits
from logitsieve.heads.base import Head
from logitsieve.index import Index
from logitsieve.kernels.csr import csr_log_sum_exp
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Float32

# Logits of all V at a time: 16 MiB of float32, whatever the number of rows asked for.
LOGITS_AT_ONCE = 1 << 22


class LogZ(NamedTuple):
    """log of the sum of exp(scale x logit), for each row."""

    value: Float32 | None  # [B]
    low: Float32 | None = None  # [B] it is proven to lie between these
    high: Float32 | None = None  # [B]
    error: Float32 | None = None  # [B] the standard error of an estimate


# (index, head, hidden [B, D], k, edits or None, scale) -> LogZ of all V, or of what edits leave
Normalizer = Callable[[Index, Head, Float32, int, Edits | None, float], LogZ]


def over_candidates(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """log sum exp over the S rows that `head` scanned: the softmax of the papers' beam search.

    A token outside has p = 0, and log Z is a lower bound of the full one.
    """
    found = head.candidates(hidden, k)
    log_z = np.empty(len(hidden), np.float32)
    csr_log_sum_exp(found.offsets, found.logits, log_z)
    return LogZ(log_z)


def over_vocabulary(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """log sum exp over all V logits, O(B V D); rows are taken a slice at a time to bound memory."""
    exact, step = index.head("exact"), max(1, LOGITS_AT_ONCE // index.vocab_size)
    slices = (hidden[start : start + step] for start in range(0, len(hidden), step))
    parts = [over_candidates(index, exact, rows, k, None, scale).value for rows in slices]
    return LogZ(np.concatenate([part for part in parts if part is not None]))


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


def default_normalizer(index: Index) -> str:
    """What `score` and `beam_step` use where a request names none."""
    proves = "certified" in NORMALIZERS and "certified" in index.heads
    return "certified" if proves else "exact"
