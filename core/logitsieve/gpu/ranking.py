"""The best ids of each row: float32 logits choose candidates, exact logits decide.

Let s be a row's k-th largest float32 logit. Before the bias was added each is within `slack` of the
exact one. So k exact logits are at least s - slack, and the float32 logit of each of the k best is
at least s - 2 slack, except for BIAS_ERROR of s and of slack, since adding the bias rounds twice (u
each). If the least of more than k candidates is below that, no other id is among the k best.
Otherwise, for example with ties, the row stays open.

Shape letters: B rows of hidden, V vocabulary, K answers, M ids of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from logitsieve.gpu.matrix import DeviceMatrix

EXTRA_CANDIDATES = 64  # candidates beyond k
BIAS_ERROR = 2.0**-22  # four times float32's rounding error


class Ranked(NamedTuple):
    """The k best of each row, best first, ties by the lower id."""

    ids: Tensor  # int32 [B, K]
    logits: Tensor  # float64 [B, K]
    exact: Tensor  # bool [B] proven to be the best of all V
    scanned: Tensor  # int32 [B] rows of W scanned; -1 for an open row

    def replace(self, chosen: Tensor, other: Ranked) -> None:
        """Replace the chosen rows by those of `other`."""
        for mine, theirs in zip(self, other, strict=True):
            mine[chosen] = theirs


def joined(parts: list[Ranked]) -> Ranked:
    return parts[0] if len(parts) == 1 else Ranked(*map(torch.cat, zip(*parts, strict=True)))


def rank(matrix: DeviceMatrix, hidden: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of distinct int32 ids [B, M], -1 for none, and their exact logits."""
    ids = ids.sort(dim=1).values  # so that a stable sort orders ties by id
    logits, places = matrix.logits64(hidden, ids).sort(dim=1, descending=True, stable=True)
    return ids.gather(1, places[:, :k]), logits[:, :k]


def rank_by_scores(matrix: DeviceMatrix, hidden: Tensor, k: int) -> Ranked:
    """Return the k best of all V ids for admissible rows of hidden [B, D]."""
    vocab_size = matrix.vocab_size
    scores, chosen = matrix.scores(hidden).topk(min(vocab_size, k + EXTRA_CANDIDATES), dim=1)
    worst = scores[:, k - 1].double()
    floor = worst - 2.0 * (1.0 + BIAS_ERROR) * matrix.slack(hidden) - BIAS_ERROR * worst.abs()
    settled = scores[:, -1].double() < floor
    if scores.shape[1] == vocab_size:
        settled = torch.ones_like(settled)
    scanned = torch.where(settled, vocab_size, -1).int()
    return Ranked(*rank(matrix, hidden, chosen.int(), k), settled, scanned)


def rank_all(matrix: DeviceMatrix, hidden: Tensor, k: int) -> Ranked:
    """Rank the exact logits of all ids, which leaves no row open."""
    logits, ids = matrix.logits64(hidden).sort(dim=1, descending=True, stable=True)
    exact = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
    return Ranked(ids[:, :k].int(), logits[:, :k], exact, exact.int() * matrix.vocab_size)
