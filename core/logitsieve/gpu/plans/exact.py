"""The k best of all rows of W: one pass in float32, few exact logits.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, G groups of rows.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from logitsieve.gpu.kernels.dense import dense_kernel
from logitsieve.gpu.kernels.exact_logits_resum import resum_kernel
from logitsieve.gpu.kernels.rank import rank_kernel
from logitsieve.gpu.kernels.scan import scan_kernel
from logitsieve.gpu.kernels.select_topk_groups import select_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import Found, above, empty_found

GROUPS = 1 << 14  # that one program can look through
SMALLEST = 16  # ids of a group, unless there would be more groups than that
MOST = 64  # answers that are found this way; more of them come from all logits, sorted
SLOTS = 4  # groups listed for each answer, the answers rounded up to a power of two
SHARES = 64  # programs that a row of status DENSE is divided among


def group_of(vocab_size: int) -> int:
    """Ids of a group."""
    return max(SMALLEST, above(-(-vocab_size // GROUPS)))


def fits(vocab_size: int, k: int) -> bool:
    """Whether there are so many more groups than answers that this plan pays."""
    return k <= MOST and 2 * k * group_of(vocab_size) <= vocab_size


def tile_of(rows: int, weight: Tensor) -> tuple[int, int]:
    """Ids and dimensions of W that a program holds at once, within the 99 KiB of every GPU."""
    return (64, 128) if rows == 1 else (128, 128 // weight.itemsize)


class ExactPlan:
    """Answers `hidden` into `found`. As a fallback it answers the rows that were PASSED_ON."""

    def __init__(
        self, matrix: Matrix, hidden: Tensor, k: int, after: tuple[Found, Tensor] | None = None
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.matrix, self.hidden, self.k, self.again = matrix, hidden, k, after is not None
        self.group, self.kept = group_of(matrix.rows), above(k, 8)
        self.groups = -(-matrix.rows // self.group)
        self.slots = SLOTS * self.kept
        length = self.slots * self.group
        status = torch.empty(rows, dtype=torch.int32, device=device)
        self.found, self.status = after or (empty_found(rows, k, device), status)
        self.maxima = torch.empty((rows, self.groups), device=device)
        self.listed = torch.empty((rows, self.slots), dtype=torch.int32, device=device)
        self.counts = torch.empty(rows, dtype=torch.int32, device=device)
        self.values = torch.empty((rows, length), dtype=torch.float64, device=device)
        self.ids = torch.empty((rows, length), dtype=torch.int32, device=device)
        self.best = torch.empty((rows, self.kept), dtype=torch.float64, device=device)

    def run(self) -> None:
        """Five kernels; that of status DENSE ends at once where no row has it."""
        self._scan()
        self._finish()

    def _scan(self) -> None:
        (weight, bias, _), rows = self.matrix, len(self.hidden)
        block_b = 1 if rows == 1 else min(64, above(rows, 16))
        block_v, block_d = tile_of(rows, weight)
        grid = (triton.cdiv(self.matrix.rows, max(block_v, self.group)), -(-rows // block_b))
        scan_kernel[grid](
            weight, bias, self.hidden, self.status, self.maxima,
            rows, self.matrix.rows, self.matrix.dim, self.groups,
            GROUP=self.group, AGAIN=self.again,
            BLOCK_V=max(block_v, self.group), BLOCK_B=block_b, BLOCK_D=block_d,
        )  # fmt: skip

    def _finish(self) -> None:
        (weight, bias, limits), rows = self.matrix, len(self.hidden)
        vocab_size, dim = self.matrix.rows, self.matrix.dim
        select_kernel[(rows,)](
            self.maxima, self.hidden, limits, self.listed, self.counts, self.status,
            dim, self.groups, self.k,
            C=self.slots, GROUPS=above(self.groups), AGAIN=self.again, num_warps=16,
        )  # fmt: skip
        resum_kernel[(rows, self.kept)](
            weight, bias, self.hidden, self.listed, self.counts, self.values, self.ids,
            vocab_size, dim, C=self.slots, GROUP=self.group,
        )  # fmt: skip
        length = self.slots * self.group
        kept = length // SHARES
        dense_kernel[(rows, SHARES)](
            weight, bias, self.hidden, self.status, self.values, self.ids, vocab_size, dim,
            -(-vocab_size // SHARES), KEPT=kept, BLOCK=64,
        )  # fmt: skip
        rank_kernel[(rows,)](
            self.values, self.ids, self.counts, self.status, self.best, *self.found,
            self.k, self.group, vocab_size,
            L=length, KEPT=self.kept, PROVEN=True, num_warps=8,
        )  # fmt: skip
