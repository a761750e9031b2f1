"""The answers of heads and decoders."""

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
ArrayLike = Any  # an array, nested lists, or a CPU tensor of PyTorch


class TopK(NamedTuple):
    """The k largest logits of each row, best first; the caller owns the arrays."""

    ids: Int32  # [B, K], with ties in the order of ids
    logits: Float32  # [B, K] exact logits W[ids] . h + b, descending
    proven: Bool  # [B] True if the answer is proven equal to the full softmax's
    scanned: Int32  # [B] number of exact logits computed
    fallback: Bool  # [B] True if the head left the row to its fallback


class Provenance(NamedTuple):
    """Fields of `Answer` about each row, [B]."""

    proven: Bool
    scanned: Int32
    fallback: Bool
    max_error: float = 1.0


class Candidates(NamedTuple):
    """Every id that a head computes for each row: row r has ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct within a row
    logits: Float32  # exact
    upper: Float32  # [B] bound on the logits of all other ids; +inf without a proof


def offsets_of(lengths: ArrayLike) -> Int64:
    """Return the CSR offsets [B+1] of rows with these lengths."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def select_rows(offsets: Int32 | Int64, rows: Int32 | Int64) -> tuple[Int64, Int64]:
    """Select CSR rows: return their new offsets and the places of their items."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    ends = offsets_of(lengths)
    return ends, np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)


def repeated_id(offsets: Int32 | Int64, ids: Int32) -> tuple[int, int] | None:
    """Return the first (row, id) that occurs twice in CSR rows, or None."""
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
    """The index and head that made a reply, and how exact each row is."""

    model: str
    version: str
    digest: str
    head: str
    proven: Bool  # [B] as in `TopK`
    scanned: Int32  # [B]
    fallback: Bool  # [B]
    max_error: float = 1.0  # largest chance that a row which is not `proven` is wrong; 1: unknown
    knobs: Mapping[str, float] = MappingProxyType({})
    normalizer: str = ""  # "" without a log Z
    log_z: Float32 | None = None  # [B]
    log_z_low: Float32 | None = None  # [B] proven bounds
    log_z_high: Float32 | None = None  # [B]
    log_z_error: Float32 | None = None  # [B] standard error of an estimate
    queue_ns: int = 0
    compute_ns: int = 0
    rows_missing: tuple[RowRange, ...] = ()  # of the vocabulary, in unreachable shards

    @property
    def max_errors(self) -> Float64:
        """[B] the largest chance that each row is wrong, over the index's random rotation.

        It holds for hidden states that do not depend on the rotation.
        """
        return ~self.proven * np.float64(self.max_error)  # tensors on a GPU, too


# The fields with a value for each row.
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
    """Round to float32, down."""
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
        """Return logits - log Z, [B, K], rounded down; ValueError without a log Z.

        Log Z is raised to at least the K ids' own, so that probabilities add up to at most 1.
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
    answer: Answer  # proven: each is the correctly rounded value, or the float32 below it


class SampleReply(NamedTuple):
    """A decoder's answer to `sample`."""

    ids: Int32  # [B, N] independent draws; or different ids without replacement, then perhaps -1
    log_probs: Float32  # [B, N] under the distribution after temperature and filters
    perturbed: Float32 | None  # [B, N] without replacement: logits / temperature + noise
    answer: Answer  # proven: the draws follow the full softmax's distribution


class BeamStepReply(NamedTuple):
    """A decoder's answer to `beam_step`: the best continuations of each group, best first.

    A group with too few of them ends in parents and tokens of -1 and scores of -inf.
    """

    parents: Int32  # [G, K] place within the group of the hypothesis that is continued
    tokens: Int32  # [G, K]
    scores: Float32  # [G, K] sums of log-probabilities
    normalized_scores: Float32  # [G, K] scores over the length penalty, descending
    finished: Bool  # [G, K]
    answer: Answer  # proven: the row's group has the full softmax's continuations, in its order
