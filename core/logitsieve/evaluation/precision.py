"""Precision@k, mass kept and rows scanned of a head, judged by the exact one.

papers/001, section 4.2: P@k = |A_k n S_k| / k, A_k the answer and S_k the exact top-k.

Shape letters: N rows, B rows of a block, K answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from logitsieve.evaluation.bounds import PROVEN, Precision, summarize
from logitsieve.types.results import ArrayLike, Candidates, Float32, Float64, TopK

MASS_STRIDE = 8  # mass kept needs all V logits of a row: one row in so many is enough
MASS_LOGITS = 1 << 22  # logits held at once for that


class Answering(Protocol):
    """What is judged, and what judges: any head."""

    proves: ClassVar[bool]

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
    return evaluate_all({"head": head}, exact, blocks, ks)["head"]


def evaluate_all(
    heads: Mapping[str, Answering],
    exact: Answering,
    blocks: Iterable[Float32],
    ks: Sequence[int] = (1, 5, 10),
) -> dict[str, Evaluation]:
    """`evaluate` for every head by its name; the truth is found once for all of them."""
    tallies = {name: _Tally(ks) for name in heads}
    for block in blocks:
        truth = exact.topk(block, max(ks))
        for name, head in heads.items():
            for k in ks:
                answer = truth if head is exact else head.topk(block, k)
                tallies[name].scanned[k].append(answer.scanned.astype(np.float64))
                if not head.proves:
                    tallies[name].shares[k].append(hits(answer, truth, k) / k)
        step = max(1, MASS_LOGITS // int(truth.scanned[0]))  # the exact head scans all V
        some = block[::MASS_STRIDE]
        for start in range(0, len(some), step):
            rows = some[start : start + step]
            for name, kept in mass_kept(heads, exact, rows, min(ks)).items():
                tallies[name].masses.append(kept)
    return {name: tallies[name].evaluation(head.proves) for name, head in heads.items()}


class _Tally:
    """What was counted of one head so far: a list of blocks for each k."""

    def __init__(self, ks: Sequence[int]) -> None:
        self.shares: dict[int, list[Float64]] = {k: [] for k in ks}
        self.scanned: dict[int, list[Float64]] = {k: [] for k in ks}
        self.masses: list[Float64] = []

    def evaluation(self, proven: bool) -> Evaluation:
        """The figures of all blocks; a proof needs no judge, and its bound no rows."""
        if not self.masses:
            raise ValueError("blocks: none to evaluate on")
        scanned = {k: np.concatenate(blocks) for k, blocks in self.scanned.items()}
        return Evaluation(
            rows=len(scanned[min(scanned)]),
            precision={
                k: PROVEN if proven else summarize(np.concatenate(blocks))
                for k, blocks in self.shares.items()
            },
            scanned={k: float(rows.mean()) for k, rows in scanned.items()},
            mass_kept=float(np.concatenate(self.masses).mean()),
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


def mass_kept(
    heads: Mapping[str, Answering], exact: Answering, rows: Float32, k: int
) -> dict[str, Float64]:
    """float64 [B] for each head: the probability of its candidates under the full softmax."""
    whole = _log_sums(exact.candidates(rows, 1))
    return {
        name: np.ones(len(rows))
        if head is exact
        else np.exp(_log_sums(head.candidates(rows, k)) - whole)
        for name, head in heads.items()
    }


def _log_sums(candidates: Candidates) -> Float64:
    """log sum exp of each row's logits; every row has at least one."""
    starts = candidates.offsets[:-1]
    logits = candidates.logits.astype(np.float64)
    top = np.maximum.reduceat(logits, starts)
    shifted = np.exp(logits - np.repeat(top, np.diff(candidates.offsets)))
    return np.asarray(top + np.log(np.add.reduceat(shifted, starts)))
