"""Answers of heads and decoders."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
UInt64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]
ArrayLike = Any  # accepted by `as_hidden`: arrays, nested lists, CPU torch tensors


class TopK(NamedTuple):
    """The k largest logits of each row, best first; the caller owns the arrays."""

    ids: Int32  # [B, K] vocabulary ids, equal logits by the lower id
    logits: Float32  # [B, K] exact logits W[ids] . h + b, descending
    proven: Bool  # [B] True only if the answer is proven equal to the full softmax's
    scanned: Int32  # [B] exact logits computed
    fallback: Bool  # [B] rows that the head handed to its fallback


class Provenance(NamedTuple):
    """Proofs and costs of rows, [B]: fields of `Answer`."""

    proven: Bool
    scanned: Int32
    fallback: Bool
    max_error: float = 1.0


class Candidates(NamedTuple):
    """Every row of W that a head looked at, as CSR: row r owns ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # [offsets[B]] distinct within a row
    logits: Float32  # [offsets[B]] exact logits
    upper: Float32  # [B] bounds all logits outside the set; +inf without a proof


def offsets_of(lengths: ArrayLike) -> Int64:
    """Return CSR offsets [B+1] of rows of these lengths."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def select_rows(offsets: Int32 | Int64, rows: Int32 | Int64) -> tuple[Int64, Int64]:
    """Return the CSR offsets of some rows, in that order, and the places of their items."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    ends = offsets_of(lengths)
    return ends, np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)


def repeated_id(offsets: Int32 | Int64, ids: Int32) -> tuple[int, int] | None:
    """Return (row, id) of the first id that a row has twice, or None."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((ids, rows))
    rows, ids = rows[order], ids[order]
    twice = np.flatnonzero((np.diff(ids) == 0) & (np.diff(rows) == 0))
    return (int(rows[twice[0]]), int(ids[twice[0]])) if twice.size else None


class RowRange(NamedTuple):
    """Consecutive rows of the vocabulary."""

    first: int
    rows: int


class Answer(NamedTuple):
    """The origin of a reply: index, head and knobs, and how right each row is."""

    model: str
    version: str
    digest: str
    head: str
    proven: Bool  # [B] proven equal to the full softmax's
    scanned: Int32  # [B] exact logits computed
    fallback: Bool  # [B] rows that the head handed to its fallback
    max_error: float = 1.0  # of a row that is not `proven` to be wrong, at most; 1: no promise
    knobs: Mapping[str, float] = MappingProxyType({})
    normalizer: str = ""  # "" without a log Z
    log_z: Float32 | None = None  # [B]
    log_z_low: Float32 | None = None  # [B] log Z is proven to lie between these two
    log_z_high: Float32 | None = None  # [B]
    log_z_error: Float32 | None = None  # [B] standard error of an estimated log Z
    queue_ns: int = 0
    compute_ns: int = 0
    rows_missing: tuple[RowRange, ...] = ()  # rows of the vocabulary that were not asked

    @property
    def max_errors(self) -> Float64:
        """[B] at most the chance of each row to be wrong, over the index's random rotation.

        It holds for contexts that do not depend on the rotation.
        """
        return ~self.proven * np.float64(self.max_error)  # tensors on a GPU, too


# Fields with a value for each row; log Z's are often not set.
ANSWER_COLUMNS = (
    "proven",
    "scanned",
    "fallback",
    "log_z",
    "log_z_low",
    "log_z_high",
    "log_z_error",
)


def rounded_down(values: Float64) -> Float32:
    """Return the largest float32 that is not above each value."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
        below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > values, below, nearest)


class TopKReply(NamedTuple):
    """A decoder's answer to `topk`."""

    ids: Int32  # [B, K]
    logits: Float32  # [B, K]
    answer: Answer

    def log_probs(self) -> Float32:
        """[B, K] logits - log Z under `answer.normalizer`, rounded down; ValueError without one.

        Log Z is at least the K ids' own, so that their probabilities add up to at most 1.
        """
        if self.answer.log_z is None:
            raise ValueError("no log Z in this reply: ask topk for a normalizer")
        if not isinstance(self.logits, np.ndarray):  # tensors on a GPU
            return (self.logits - self.answer.log_z[:, None]).clip(max=0)
        deltas = self.logits - self.logits[:, :1].astype(np.float64)
        rest = np.log1p(np.exp(deltas[:, 1:]).sum(axis=1)) * (1 + 2.0**-40)
        rest = np.maximum(rest, self.answer.log_z.astype(np.float64) - self.logits[:, 0])
        return rounded_down(deltas - rest[:, None])


class ScoreReply(NamedTuple):
    """A decoder's answer to `score`."""

    log_probs: Float32  # [B, T]
    answer: Answer  # proven: each is proven the correctly rounded one, or the float32 below it


class SampleReply(NamedTuple):
    """A decoder's answer to `sample`."""

    ids: Int32  # [B, N] draws: independent, or without replacement different ones, -1 for none
    log_probs: Float32  # [B, N] of each under the distribution that was drawn from
    # [B, N] logits / temperature plus noise, descending, of draws without replacement
    perturbed: Float32 | None
    answer: Answer  # proven: the draws follow the full softmax's distribution, proven


class BeamStepReply(NamedTuple):
    """A decoder's answer to `beam_step`: the best pairs of each group, best first.

    A group with too few pairs ends in parents and tokens -1 with scores of -inf.
    """

    parents: Int32  # [G, K] place within the group of the hypothesis that is continued
    tokens: Int32  # [G, K]
    scores: Float32  # [G, K] sums of log-probabilities
    normalized_scores: Float32  # [G, K] scores over the length penalty, descending
    finished: Bool  # [G, K]
    answer: (
        Answer  # proven, a row: its group's pairs and their order are the full softmax's, proven
    )
