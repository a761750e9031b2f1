"""What heads and decoders answer.

Shape letters: B batch rows, K answers a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class TopK(NamedTuple):
    """The k largest logits of each row, best first; the caller owns the arrays."""

    ids: Int32  # [B, K] vocabulary ids, equal logits by the lower id
    logits: Float32  # [B, K] exact logits W[ids] . h + b, descending
    exact: Bool  # [B] True only where the answer is proven equal to the full softmax's
    scanned: Int32  # [B] rows of W whose exact logit was computed


class Candidates(NamedTuple):
    """Every row of W that a head looked at, as CSR: row r owns ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # [offsets[B]] distinct within a row
    logits: Float32  # [offsets[B]] exact logits
    upper: Float32  # [B] no logit outside the set exceeds it; +inf where nothing is proven


class Bounds(NamedTuple):
    """What is proven of all logits of one row of hidden."""

    ids: Int32  # [S] rows computed exactly
    logits: Float32  # [S] their logits
    lower: Float32  # [V] no logit is below its lower; the logit itself where it was computed
    upper: Float32  # [V] no logit exceeds its upper
    log_z_low: float  # log Z of the full softmax lies between these
    log_z_high: float


class Answer(NamedTuple):
    """How a reply was made: which index, head and knobs, and how right it is."""

    model: str
    version: str
    digest: str
    head: str
    exact: Bool  # [B]
    scanned: Int32  # [B]
    fallback: Bool  # [B] rows that the head handed to its fallback
    knobs: Mapping[str, float] = MappingProxyType({})
    normalizer: str = ""  # "" when no log Z was asked for
    log_z: Float32 | None = None  # [B]
    queue_ns: int = 0
    compute_ns: int = 0


class TopKReply(NamedTuple):
    """A decoder's answer to `topk`."""

    ids: Int32  # [B, K]
    logits: Float32  # [B, K]
    answer: Answer

    def log_probs(self) -> Float32:
        """[B, K] logits - log Z under `answer.normalizer`; ValueError if none was asked for."""
        if self.answer.log_z is None:
            raise ValueError("no log Z in this reply: ask topk for a normalizer")
        return self.logits - self.answer.log_z[:, None]


ArrayLike = Any  # what `as_hidden` accepts: arrays, nested lists, CPU torch tensors
