"""Precision@k, mass kept and rows scanned of a head, judged by the exact one.

papers/001, section 4.2: P@k = |A_k n S_k| / k, A_k the answer and S_k the exact top-k.

Shape letters: N rows, B rows of a block, K answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from logitsieve.evaluation.bounds import Precision, summarize
from logitsieve.types.results import ArrayLike, Candidates, Float32, Float64, TopK

MASS_STRIDE = 8  # mass kept needs all V logits of a row: one row in so many is enough
MASS_LOGITS = 1 << 22  # logits held at once for that


class Answering(Protocol):
    """What is judged, and what judges: any head."""

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best ids of each row."""
        ...

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """Every row of W looked at, with exact logits."""
        ...


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How right a head is on `rows` contexts; the mappings are by k."""

    rows: int
    precision: Mapping[int, Precision]
    scanned: Mapping[int, float]  # rows of W a context, on average
    mass_kept: float  # share of the softmax's probability that lies in the candidates


def evaluate(
    head: Answering, exact: Answering, blocks: Iterable[Float32], ks: Sequence[int] = (1, 5, 10)
) -> Evaluation:
    """Judge `head` by `exact` on blocks [B, D] of contexts, in the order of their text.

    ValueError if there is no block, or if the head repeats an id in an answer.
    """
    shares: dict[int, list[Float64]] = {k: [] for k in ks}
    scanned: dict[int, list[Float64]] = {k: [] for k in ks}
    masses = []
    for block in blocks:
        truth = exact.topk(block, max(ks))
        for k in ks:
            answer = head.topk(block, k)
            shares[k].append(hits(answer, truth, k) / k)
            scanned[k].append(answer.scanned.astype(np.float64))
        masses.append(mass_kept(head, exact, block[::MASS_STRIDE], min(ks)))
    if not masses:
        raise ValueError("blocks: none to evaluate on")
    return Evaluation(
        rows=sum(map(len, shares[min(ks)])),
        precision={k: summarize(np.concatenate(shares[k])) for k in ks},
        scanned={k: float(np.concatenate(scanned[k]).mean()) for k in ks},
        mass_kept=float(np.concatenate(masses).mean()),
    )


def hits(answer: TopK, truth: TopK, k: int) -> Float64:
    """float64 [B]: how many of the k answers belong to the exact top-k.

    An id whose logit equals the k-th exact one belongs too: which of the tied ids the exact top-k
    holds is a convention. `truth` may hold more than k.
    """
    ordered = np.sort(answer.ids, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError("ids: an answer holds an id twice")
    inside = (answer.ids[:, :, None] == truth.ids[:, None, :k]).any(axis=2)
    tied = answer.logits == truth.logits[:, k - 1 : k]
    return np.asarray((inside | tied).sum(axis=1), np.float64)


def mass_kept(head: Answering, exact: Answering, block: Float32, k: int) -> Float64:
    """float64 [B]: the probability of each row's candidates under the full softmax."""
    vocab_size = int(exact.candidates(block[:1], 1).offsets[-1])
    step = max(1, MASS_LOGITS // vocab_size)
    parts = []
    for start in range(0, len(block), step):
        rows = block[start : start + step]
        kept = _log_sums(head.candidates(rows, k))
        parts.append(np.exp(kept - _log_sums(exact.candidates(rows, 1))))
    return np.concatenate(parts)


def _log_sums(candidates: Candidates) -> Float64:
    """log sum exp of each row's logits; every row has at least one."""
    starts = candidates.offsets[:-1]
    logits = candidates.logits.astype(np.float64)
    top = np.maximum.reduceat(logits, starts)
    shifted = np.exp(logits - np.repeat(top, np.diff(candidates.offsets)))
    return np.asarray(top + np.log(np.add.reduceat(shifted, starts)))
