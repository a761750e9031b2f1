"""All rows of W: the k best, exact logits of named ids, and float32 logits.

The k best take one pass in float32, and few exact logits.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, G groups of rows, M ids of
a row.
"""

from __future__ import annotations

from torch import Tensor
from triton import cdiv, next_power_of_2

from logitsieve.gpu.kernels.exact_logits import listed_logits_kernel, named_logits_kernel
from logitsieve.gpu.kernels.scan import scan_kernel, select_topk_groups_kernel
from logitsieve.gpu.kernels.topk import dense_topk_kernel, rank_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import After, empty_output, float64s, int32s, row_block

GROUPS = 1 << 14  # that one program can look through
SMALLEST = 16  # ids of a group, unless there would be more groups than that
MOST = 64  # answers that are found this way; more of them come from all logits, sorted
SLOTS = 4  # groups listed for each answer, the answers rounded up to a power of two
SHARES = 64  # programs that a row of status DENSE is divided among
BLOCK = 16  # ids of a program of `named_logits`
VALUES = 1 << 13  # of the matrix that one program of FloatLogits loads at once


def group_of(vocab_size: int) -> int:
    return int(max(SMALLEST, next_power_of_2(cdiv(vocab_size, GROUPS))))


def fits(vocab_size: int, k: int) -> bool:
    """True where this plan pays: many more groups than answers."""
    return k <= MOST and 2 * k * group_of(vocab_size) <= vocab_size


def tile_of(rows: int, weight: Tensor, group: int) -> tuple[int, int]:
    """Ids and dimensions of W that a program holds at once, within the 99 KiB of every GPU."""
    ids, dims = (64, 128) if rows == 1 else (128, 128 // weight.itemsize)
    return max(ids, group), dims


class ExactPlan:
    """Answers `hidden` into `output`. As a fallback it answers the rows that were PASSED_ON."""

    def __init__(self, matrix: Matrix, hidden: Tensor, k: int, after: After | None = None) -> None:
        rows = len(hidden)
        self.matrix, self.hidden, self.k, self.again = matrix, hidden, k, after is not None
        self.group, self.kept = group_of(matrix.rows), max(8, next_power_of_2(k))
        self.groups = cdiv(matrix.rows, self.group)
        self.slots = SLOTS * self.kept
        length = self.slots * self.group
        self.output, self.status = after or (
            empty_output(rows, k, hidden.device), int32s(hidden, rows),
        )  # fmt: skip
        self.maxima = hidden.new_empty(rows, self.groups)
        self.listed, self.counts = int32s(hidden, rows, self.slots), int32s(hidden, rows)
        self.values, self.ids = float64s(hidden, rows, length), int32s(hidden, rows, length)
        self.best = float64s(hidden, rows, self.kept)

    def run(self) -> None:
        self._scan()
        self._finish()

    def _scan(self) -> None:
        (weight, bias, _), rows = self.matrix, len(self.hidden)
        block_b, (block_v, block_d) = row_block(rows), tile_of(rows, weight, self.group)
        scan_kernel[(cdiv(self.matrix.rows, block_v), cdiv(rows, block_b))](
            weight, bias, self.hidden, self.status, self.maxima,
            rows, self.matrix.rows, self.matrix.dim, self.groups,
            GROUP=self.group, FALLBACK=self.again,
            BLOCK_V=block_v, BLOCK_B=block_b, BLOCK_D=block_d,
        )  # fmt: skip

    def _finish(self) -> None:
        (weight, bias, limits), rows = self.matrix, len(self.hidden)
        vocab_size, dim = self.matrix.rows, self.matrix.dim
        select_topk_groups_kernel[(rows,)](
            self.maxima, self.hidden, limits, self.listed, self.counts, self.status,
            dim, self.groups, self.k,
            C=self.slots, GROUPS=next_power_of_2(self.groups), FALLBACK=self.again, num_warps=16,
        )  # fmt: skip
        no_edits = self.counts, self.listed, self.values
        listed_logits_kernel[(rows, self.kept)](
            weight, bias, self.hidden, *no_edits, self.listed, self.counts, self.values, self.ids,
            vocab_size, dim, 1, C=self.slots, GROUP=self.group, EDITS=False, NAMES=True,
        )  # fmt: skip
        length = self.slots * self.group
        kept = length // SHARES
        dense_topk_kernel[(rows, SHARES)](
            weight, bias, self.hidden, self.status, self.values, self.ids, vocab_size, dim,
            cdiv(vocab_size, SHARES), KEPT=kept, BLOCK=64,
        )  # fmt: skip
        rank_kernel[(rows,)](
            self.values, self.ids, self.counts, self.status, self.best, *self.output,
            self.k, self.group, vocab_size,
            L=length, KEPT=self.kept, PROVEN=True, num_warps=8,
        )  # fmt: skip


def named_logits(matrix: Matrix, hidden: Tensor, ids: Tensor) -> Tensor:
    """float64 [B, M] of ids int32 [B, M] for the rows of hidden float32 [B, D].

    -inf where an id is negative, NaN in rows that are not finite or too large.
    """
    weight, bias, limits = matrix
    logits = float64s(hidden, *ids.shape)
    rows, count = ids.shape
    # Rows are the first axis: blocks of W that they share are read at about the same time.
    named_logits_kernel[(rows, cdiv(count, BLOCK))](
        weight, bias, hidden, limits, ids, logits, matrix.rows, matrix.dim, count, BLOCK=BLOCK
    )
    return logits


class FloatLogits:
    """`logits` [B, V] of `hidden` [B, D]: `weight` [V, D] times it, and `bias` [V]."""

    def __init__(self, weight: Tensor, bias: Tensor, hidden: Tensor) -> None:
        self._weight, self._bias, self._hidden = weight, bias, hidden
        self.logits = hidden.new_empty(len(hidden), len(weight))

    def run(self) -> None:
        (vocab_size, dim), rows = self._weight.shape, len(self._hidden)
        block_b = row_block(rows)
        block_d = min(128 if rows == 1 else 32, max(16, next_power_of_2(dim)))
        block_v = min(VALUES // block_d, max(16, next_power_of_2(vocab_size))) if rows == 1 else 128
        scan_kernel[(cdiv(vocab_size, block_v), cdiv(rows, block_b))](
            # Groups of one: the largest of each is itself. Without FALLBACK no status is read.
            self._weight, self._bias, self._hidden, self.logits, self.logits,
            rows, vocab_size, dim, vocab_size,
            GROUP=1, FALLBACK=False, BLOCK_V=block_v, BLOCK_B=block_b, BLOCK_D=block_d,
        )  # fmt: skip
