"""SVD-softmax: a preview of all logits in few rotated dimensions, exact logits of the best.

The preview is float32, summed in another order than the host's: which rows are looked at may differ
where a score is within rounding of the last that is chosen. Equal scores, such as those of equal
rows, are chosen by the lower id on both.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, R rank, W width, N
candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton import next_power_of_2

from logitsieve.gpu.device import to_device
from logitsieve.gpu.kernels.status import check_finite_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import empty_output, int32s
from logitsieve.gpu.plans.exact import FloatLogits
from logitsieve.gpu.plans.screen import LONGEST, ChunkBest, DeviceLists, ListedBest, Routed


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
    part: Any = arrays["basis"][:width], rows
    preview: Preview = to_device(Preview(*part), device)
    return preview


def chunk_of(vocab_size: int, candidates: int) -> int:
    """Scores that one program chooses from: at least twice as many as it keeps, or all."""
    return int(max(LONGEST, min(next_power_of_2(2 * candidates), next_power_of_2(vocab_size))))


def fits(vocab_size: int, candidates: int) -> bool:
    """True where one program can choose that many candidates."""
    return chunk_of(vocab_size, candidates) <= 2 * LONGEST


class SvdPlan:
    """Answers `hidden` into `output`, k <= candidates. The previews [B, V] are kept in memory."""

    def __init__(
        self, matrix: Matrix, preview: Preview, hidden: Tensor, k: int, candidates: int
    ) -> None:
        rows = len(hidden)
        self.matrix, self.hidden = matrix, hidden
        self.output = empty_output(rows, k, hidden.device)
        self.status = int32s(hidden, rows)
        no_bias = hidden.new_zeros(len(preview.basis))
        self.rotated = FloatLogits(preview.basis, no_bias, hidden)
        self.scores = FloatLogits(preview.rows, matrix.bias, self.rotated.logits)
        self.levels = self._chosen(candidates)
        chosen = self.levels[-1].names
        places = torch.arange(rows + 1, dtype=torch.int32, device=hidden.device)
        lists = DeviceLists(places * candidates, chosen, candidates, None)
        owners = places[:-1, None]
        routed = Routed(owners, torch.zeros_like(owners), self._all(candidates), self.status)
        self.listed = ListedBest(matrix, hidden, k, lists, routed, candidates, self.output)

    def _all(self, count: int) -> Tensor:
        return torch.full_like(self.status, count)

    def _chosen(self, candidates: int) -> list[ChunkBest]:
        """Levels of which each leaves fewer values, the last one `candidates` for each row."""
        everything = Routed(self.status, self.status, self._all(self.matrix.rows), self.status)
        chunk = chunk_of(self.matrix.rows, candidates)
        room = everything, candidates, candidates, chunk
        levels = [ChunkBest(self.scores.logits, None, *room)]
        while levels[-1].chunks > 1:
            levels.append(ChunkBest(levels[-1].best, levels[-1].names, *room))
        return levels

    def run(self) -> None:
        limits, dim = self.matrix.limits, self.matrix.dim
        check_finite_kernel[(len(self.hidden),)](self.hidden, limits, self.status, dim)
        self.rotated.run()
        self.scores.run()
        for level in self.levels:
            level.run()
        self.listed.run()
