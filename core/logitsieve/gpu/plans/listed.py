"""The k best of the lists that rows were routed to: exact logits of all their ids, then ranked.

Shape letters: B rows of hidden, D hidden size, K answers, C lists, S ids of all lists, T tiles,
P probes, L candidates of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Int32
from logitsieve.gpu.kernels.chunks import chunks_kernel
from logitsieve.gpu.kernels.exact_logits_lists import lists_kernel, shared_lists_kernel
from logitsieve.gpu.kernels.rank import rank_kernel
from logitsieve.gpu.matrix import Matrix, on
from logitsieve.gpu.plans import Found, above

LONGEST = 1 << 13  # values that one program looks through
TILE = 8  # ids whose logits a warp computes together
FEW = 4  # rows that share loads; fewer do not
ROUTES = 64  # looked through for those of one cluster, at most


class Lists(NamedTuple):
    """Lists of ids on one device, and how they are shared among programs."""

    offsets: Tensor  # [C+1] int32
    ids: Tensor  # [S] int32, rising in every list
    longest: int  # ids of a list, at most
    tiles: Tensor | None  # [T, 2] int32: a list, and where in `ids` a tile of it begins


class Routed(NamedTuple):
    """The lists of each row; see route.py."""

    routes: Tensor  # [B, P] int32
    starts: Tensor  # [B, P] int32
    counts: Tensor  # [B] int32
    status: Tensor  # [B] int32


def lists_on(device: torch.device, offsets: Int32, ids: Int32) -> Lists:
    """Copy the lists ids[offsets[c]:offsets[c+1]] there, each in the order of its ids."""
    lengths = np.diff(offsets)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    ordered = ids[np.lexsort((ids, owners))]
    counts = -(-lengths // TILE)
    lists = np.repeat(np.arange(len(lengths)), counts)
    turns = np.arange(len(lists)) - np.repeat(np.cumsum(counts) - counts, counts)
    tiles = np.stack([lists, offsets[lists] + TILE * turns], axis=1).astype(np.int32)
    longest = int(lengths.max())
    return Lists(on(device, offsets), on(device, ordered), longest, on(device, tiles))


def empty_routed(rows: int, probes: int, device: torch.device) -> Routed:
    """Room for the routes of a batch."""
    return Routed(
        torch.empty((rows, probes), dtype=torch.int32, device=device),
        torch.empty((rows, probes), dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
    )


class Best:
    """The `k` best of every chunk of values [B, L], in `slots` places of `best` and `names` each.

    Without `ids` [B, L] a value's id is its place. Rows have counts [B] values.
    """

    def __init__(
        self, values: Tensor, ids: Tensor | None, routed: Routed, k: int, slots: int, chunk: int
    ) -> None:
        rows, length = values.shape
        self._from, self._routed, self._k, self._slots = (values, ids), routed, k, slots
        self._chunk, self.chunks = chunk, above(-(-length // chunk))
        shape = (rows, self.chunks * slots)
        self.best = torch.empty(shape, dtype=values.dtype, device=values.device)
        self.names = torch.empty(shape, dtype=torch.int32, device=values.device)

    def run(self) -> None:
        """One kernel."""
        values, ids = self._from
        rows, length = values.shape
        chunks_kernel[(rows, self.chunks)](
            values, values if ids is None else ids, self._routed.counts, self._routed.status,
            self.best, self.names, length, self._k, self._slots,
            CHUNK=self._chunk, SLOTS=above(self._slots), NAMED=ids is not None,
            num_warps=self._chunk // 1024,
        )  # fmt: skip


class ListedBest:
    """Answers rows WANTED, and those REFUSED, into `found`.

    No row has more than `most` candidates, and those WANTED have k different ones.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, k: int, lists: Lists, routed: Routed, most: int,
        found: Found,
    ) -> None:  # fmt: skip
        rows, device = len(hidden), hidden.device
        self._matrix, self._hidden, self._k = matrix, hidden, k
        self._lists, self._routed, self._found = lists, routed, found
        length, kept = above(most, 16), above(k, 8)
        self._values = torch.empty((rows, length), dtype=torch.float64, device=device)
        self._ids = torch.empty((rows, length), dtype=torch.int32, device=device)
        self._sorted = torch.empty((rows, kept), dtype=torch.float64, device=device)
        self._levels: list[Best] = []
        self._ranked = self._values, self._ids
        while self._ranked[0].shape[1] > LONGEST:
            level = Best(*self._ranked, routed, k, kept, LONGEST)
            self._levels.append(level)
            self._ranked = level.best, level.names

    def run(self) -> None:
        """Two kernels, and one more wherever lists are long."""
        if len(self._hidden) < FEW or self._lists.tiles is None:
            self._compute()
        else:
            self._compute_shared(self._lists.tiles)
        for level in self._levels:
            level.run()
        values, ids = self._ranked
        # A row's count is that of all its candidates: no fewer than are left of them.
        rank_kernel[(len(self._hidden),)](
            values, ids, self._routed.counts, self._routed.status, self._sorted, *self._found,
            self._k, 1, 0,
            L=values.shape[1], KEPT=self._sorted.shape[1], PROVEN=False, num_warps=8,
        )  # fmt: skip

    def _compute(self) -> None:
        probes = self._routed.routes.shape[1]
        grid = (self._routed.routes.numel(), -(-self._lists.longest // TILE))
        lists_kernel[grid](
            self._matrix.weight, self._matrix.bias, self._hidden,
            self._lists.offsets, self._lists.ids, *self._routed[:2], self._routed.status,
            self._values, self._ids, self._matrix.dim, self._values.shape[1],
            self._lists.longest.bit_length(), P=probes, TILE=TILE, num_warps=1,
        )  # fmt: skip

    def _compute_shared(self, tiles: Tensor) -> None:
        rows, probes = self._routed.routes.shape
        # So many that four of them are to one list, were all lists alike.
        block = min(ROUTES, above(rows * probes), above(FEW * (len(self._lists.offsets) - 1)))
        shared_lists_kernel[(len(tiles), -(-rows * probes // block))](
            self._matrix.weight, self._matrix.bias, self._hidden,
            self._lists.offsets, self._lists.ids, *self._routed[:2], self._routed.status,
            self._values, self._ids, tiles, rows, self._matrix.dim, self._values.shape[1],
            self._lists.longest.bit_length(), P=probes, TILE=TILE, ROUTES=block, num_warps=1,
        )  # fmt: skip
