"""Precision@k, coverage, mass kept and rows scanned of a head, compared with the exact one.

Chen et al. 2019, section 4.2: P@k = |A_k n S_k| / k for the answer A_k and the exact top k, S_k.

Shape letters: N rows, B rows of a block.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from logitsieve.api.results import ArrayLike, Bool, Candidates, Float32, Float64, Int32, TopK
from logitsieve.evaluation.operating_points import KS
from logitsieve.utils.hidden import as_hidden

R = TypeVar("R")

# One context in eight suffices for the mass kept, which needs all V logits, and for proving heads,
# of which only the scanned rows are unknown.
MASS_STRIDE = 8
MASS_LOGITS = 1 << 22  # logits computed at once
BLOCKS = 20
LEAST_BLOCKS = 5
LEAST_BLOCK_ROWS = 10
Z95 = 1.6448536269514722  # the normal distribution's one-sided 95 % point
UNEVEN, UNEVEN_SIGMAS = 0.01, 4  # a block is uneven if it is below the mean by both


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A mean over rows, and how it varies between contiguous blocks of rows."""

    mean: float
    low: float  # one-sided 95 % bound
    worst: float  # lowest mean of a block
    best: float  # highest
    uneven: bool  # the worst block is far below the mean


PROVEN = Precision(mean=1.0, low=1.0, worst=1.0, best=1.0, uneven=False)


def summarize(share_N: Float64) -> Precision:
    blocks = block_means(share_N)
    mean, worst = float(share_N.mean()), float(blocks.min())
    sigma = math.sqrt(mean * (1 - mean) * len(blocks) / len(share_N))
    return Precision(
        mean=mean,
        low=lower_bound(share_N),
        worst=worst,
        best=float(blocks.max()),
        uneven=mean - worst > max(UNEVEN, UNEVEN_SIGMAS * sigma),
    )


def block_means(share_N: Float64) -> Float64:
    rows, count = len(share_N), max(1, min(BLOCKS, len(share_N) // LEAST_BLOCK_ROWS))
    bounds = np.arange(count + 1) * rows // count
    means: Float64 = np.add.reduceat(share_N, bounds[:-1]) / np.diff(bounds)
    return means


def lower_bound(share_N: Float64) -> float:
    """Return the one-sided lower 95 % confidence bound of the mean of N rows.

    It is Student's t over the means of contiguous blocks (Law and Kelton, "Simulation Modeling and
    Analysis"), but at most Wilson's bound for independent rows (JASA 22, 1927), as blocks without a
    miss have no variance.
    """
    mean, blocks = float(share_N.mean()), block_means(share_N)
    low = wilson(mean, len(share_N))
    if len(blocks) < LEAST_BLOCKS:
        return low
    error = float(blocks.std(ddof=1)) / math.sqrt(len(blocks))
    return max(0.0, min(low, mean - student95(len(blocks) - 1) * error))


def wilson(mean: float, rows: int) -> float:
    z2 = Z95 * Z95
    spread = Z95 * math.sqrt(mean * (1 - mean) / rows + z2 / (4 * rows * rows))
    return max(0.0, (mean + z2 / (2 * rows) - spread) / (1 + z2 / rows))


def student95(freedom: int) -> float:
    """Return Student's one-sided 95 % point, within 0.003 (Abramowitz and Stegun, 26.7.5)."""
    z = Z95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


class Judged(Protocol):
    @property
    def proves(self) -> bool: ...

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK: ...

    def candidates(self, hidden_states: ArrayLike, k: int) -> Candidates: ...


ESTIMATE = 1  # the column of log Z


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The judgement of a head on `rows` contexts; mappings are by k."""

    rows: int
    precision: Mapping[int, Precision]
    scanned: Mapping[int, float]  # mean number of rows of W
    coverage: Mapping[int, float]  # share of contexts not left to the fallback
    mass_kept: float  # the candidates' share of the softmax's probability


def evaluate(
    head: Judged, full: Judged, blocks: Iterable[Float32], ks: Sequence[int] = KS, batch: int = 1
) -> Evaluation:
    """Judge `head` by `full` on blocks [B, D] of contexts; ValueError if there are none.

    How many rows of W a proving head scans depends on `batch`, the rows of a call.
    """
    counts = []
    for block in blocks:
        truth = Truth(*find_truth(full, block, max(ks)))
        counts.append(count(head, block, truth, ks, head is full, batch))
    return _evaluation(counts, head.proves)


# (call, head, blocks) -> the results of call(head, *block), in order
Each = Callable[..., Iterator[Any]]


def in_turn(call: Callable[..., R], head: Judged, blocks: Iterable[tuple[Any, ...]]) -> Iterator[R]:
    return (call(head, *block) for block in blocks)


class Judge:
    def __init__(
        self,
        full: Judged,
        blocks: Callable[[], Iterable[Float32]],
        ks: Sequence[int] = KS,
        each: Each = in_turn,
    ) -> None:
        self._full, self._blocks, self._ks, self._each = full, blocks, ks, each
        wanted = ((block, max(ks)) for block in blocks())
        self._truths = [Truth(*found) for found in each(find_truth, full, wanted)]

    def evaluate(self, head: Judged) -> Evaluation:
        judged = (
            (block, truth, self._ks, head is self._full)
            for block, truth in zip(self._blocks(), self._truths, strict=True)
        )
        return _evaluation(list(self._each(count, head, judged)), head.proves)


class Truth(NamedTuple):
    ids: Int32  # [B, K]
    logits: Float32  # [B, K]
    scanned: Int32  # [B]
    log_z: Float64  # for every MASS_STRIDE-th row

    @property
    def top(self) -> TopK:
        none = np.zeros(len(self.ids), np.bool_)
        return TopK(self.ids, self.logits, ~none, self.scanned, none)


class Counts(NamedTuple):
    """The judgement of a head on a block of B contexts; mappings are by k."""

    rows: int  # B
    scanned: Mapping[int, Float64]  # [B]; a proving head has those of `mass` only
    shares: Mapping[int, Float64]  # [B] precision; empty for a proving head
    own: Mapping[int, Bool]  # [B] False for rows left to a fallback; empty for a proving head
    mass: Float64  # for every MASS_STRIDE-th row


def find_truth(full: Judged, block: Float32, k: int) -> tuple[np.ndarray, ...]:
    top = full.topk(block, k)
    rows = as_hidden(block[::MASS_STRIDE])
    log_z = cast(Any, full).quick_log_z(rows)[:, ESTIMATE]
    return Truth(top.ids, top.logits, top.scanned, log_z)


def count(
    head: Judged, block: Float32, truth: Truth, ks: Sequence[int], is_truth: bool, batch: int = 1
) -> Counts:
    """Judge a head on a block, a proving one on every MASS_STRIDE-th row in calls of `batch`."""
    rows = block[::MASS_STRIDE]
    calls = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    scanned, shares, own = {}, {}, {}
    for k in ks:
        if head.proves and not is_truth:
            read = [head.topk(call, k).scanned for call in calls]
            scanned[k] = np.concatenate(read).astype(np.float64)
            continue
        answer = truth.top if is_truth else head.topk(block, k)
        scanned[k] = answer.scanned.astype(np.float64)
        if not head.proves:
            shares[k] = hits(answer, truth.top, k) / k
            own[k] = ~answer.fallback
    if is_truth:
        return Counts(len(block), scanned, shares, own, np.ones(len(rows)))
    vocab_size = int(truth.scanned[0])  # `full` scans all rows of W
    log_share = log_mass(head, rows, min(ks), vocab_size) - truth.log_z
    mass = np.exp(np.minimum(log_share, 0.0))  # rounding may exceed it
    return Counts(len(block), scanned, shares, own, mass)


def _evaluation(counts: Sequence[Counts], proves: bool) -> Evaluation:
    if not counts:
        raise ValueError("blocks: none to evaluate on")
    ks = list(counts[0].scanned)

    def joined(field: str) -> dict[int, np.ndarray]:
        return {k: np.concatenate([getattr(each, field)[k] for each in counts]) for k in ks}

    precision, coverage = dict.fromkeys(ks, PROVEN), dict.fromkeys(ks, 1.0)
    if not proves:
        precision = {k: summarize(rows) for k, rows in joined("shares").items()}
        coverage = {k: float(rows.mean()) for k, rows in joined("own").items()}
    return Evaluation(
        rows=sum(each.rows for each in counts),
        precision=precision,
        scanned={k: float(rows.mean()) for k, rows in joined("scanned").items()},
        coverage=coverage,
        mass_kept=float(np.concatenate([each.mass for each in counts]).mean()),
    )


def hits(answer: TopK, truth: TopK, k: int) -> Float64:
    """Count the ids of each answer, [B], that are in the exact top k or tied with its last."""
    ordered = np.sort(answer.ids, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError("ids: an answer holds an id twice")
    inside = (answer.ids[:, :, None] == truth.ids[:, None, :k]).any(axis=2)
    tied = answer.logits == truth.logits[:, k - 1 : k]
    return np.asarray((inside | tied).sum(axis=1), np.float64)


def log_mass(head: Judged, rows: Float32, k: int, vocab_size: int) -> Float64:
    step = max(1, MASS_LOGITS // vocab_size)
    starts = range(0, len(rows), step)
    parts = (head.candidates(rows[start : start + step], k) for start in starts)
    return np.concatenate([_log_sums(candidates) for candidates in parts])


def _log_sums(candidates: Candidates) -> Float64:
    starts = candidates.offsets[:-1]  # every row has at least one candidate
    logits = candidates.logits.astype(np.float64)
    top = np.maximum.reduceat(logits, starts)
    shifted = np.exp(logits - np.repeat(top, np.diff(candidates.offsets)))
    return np.asarray(top + np.log(np.add.reduceat(shifted, starts)))
