"""SVD-softmax: a preview of all logits in few rotated dimensions, exact logits of the best.

The preview is float32, summed in another order than the host's: which rows are looked at may differ
where a score is within rounding of the last that is chosen. Equal scores, such as those of equal
rows, are chosen by the lower id on both.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, R rank, W width, N
candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.gpu.kernels.check_finite import admit_kernel
from logitsieve.gpu.matrix import Matrix, on
from logitsieve.gpu.plans import above, empty_found
from logitsieve.gpu.plans.fallback import Fallback, FallbackPlan
from logitsieve.gpu.plans.listed import LONGEST, Best, ListedBest, Lists, Routed
from logitsieve.gpu.plans.scores import Scores


class Preview(NamedTuple):
    """All rows of W in `width` rotated dimensions, on one device."""

    basis: Tensor  # [W, D] float32
    rows: Tensor  # [V, W] float32


def preview_on(
    device: torch.device, arrays: Mapping[str, np.ndarray], vocab_size: int, width: int
) -> Preview:
    """Copy what `width` dimensions need of the part's basis [R, D] and preview [V/16, R, 16]."""
    columns = arrays["preview"][:, :width]
    rows = columns.transpose(0, 2, 1).reshape(-1, width)[:vocab_size]
    return Preview(on(device, arrays["basis"][:width]), on(device, rows))


def chunk_of(vocab_size: int, candidates: int) -> int:
    """Scores that one program chooses from: at least twice as many as it keeps, or all."""
    return max(LONGEST, min(above(2 * candidates), above(vocab_size)))


def fits(vocab_size: int, candidates: int) -> bool:
    """Whether so many candidates can be chosen on a GPU."""
    return chunk_of(vocab_size, candidates) <= 2 * LONGEST


def svd_plan(
    matrix: Matrix, preview: Preview, hidden: Tensor, k: int, fallback: Fallback, *,
    candidates: int,
) -> SvdPlan | FallbackPlan:  # fmt: skip
    """A plan that looks at so many `candidates`, or passes all rows on where k is more."""
    if k > candidates:
        return FallbackPlan(hidden, k, fallback)
    return SvdPlan(matrix, preview, hidden, k, candidates)


class SvdPlan:
    """Answers `hidden` into `found`, k <= candidates. The previews [B, V] are kept in memory."""

    def __init__(
        self, matrix: Matrix, preview: Preview, hidden: Tensor, k: int, candidates: int
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.matrix, self.hidden = matrix, hidden
        self.found = empty_found(rows, k, device)
        self.status = torch.empty(rows, dtype=torch.int32, device=device)
        self.turned = Scores(preview.basis, torch.zeros(len(preview.basis), device=device), hidden)
        self.scores = Scores(preview.rows, matrix.bias, self.turned.found)
        self.levels = self._chosen(candidates)
        chosen = self.levels[-1].names
        offsets = torch.arange(rows + 1, dtype=torch.int32, device=device) * candidates
        lists = Lists(offsets, chosen, candidates, None)
        owners = torch.arange(rows, dtype=torch.int32, device=device)[:, None]
        routed = Routed(owners, torch.zeros_like(owners), self._all(candidates), self.status)
        self.listed = ListedBest(matrix, hidden, k, lists, routed, candidates, self.found)

    def _all(self, count: int) -> Tensor:
        """The same count for every row."""
        return torch.full_like(self.status, count)

    def _chosen(self, candidates: int) -> list[Best]:
        """Levels of which each leaves fewer values, the last one `candidates` for each row."""
        everything = Routed(self.status, self.status, self._all(self.matrix.rows), self.status)
        chunk = chunk_of(self.matrix.rows, candidates)
        level = Best(self.scores.found, None, everything, candidates, candidates, chunk)
        levels = [level]
        while level.chunks > 1:
            level = Best(level.best, level.names, everything, candidates, candidates, chunk)
            levels.append(level)
        return levels

    def run(self) -> None:
        """Six kernels, and one more where the scores are many."""
        limits, dim = self.matrix.limits, self.matrix.dim
        admit_kernel[(len(self.hidden),)](self.hidden, limits, self.status, dim)
        self.turned.run()
        self.scores.run()
        for level in self.levels:
            level.run()
        self.listed.run()
