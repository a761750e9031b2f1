"""The k best of the candidate lists that rows are routed to, as the learned screen routes them.

A row is routed to the lists of the clusters that suit it best. Exact logits of all their ids are
computed, then ranked. The frequency head is a screen with one cluster.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, C clusters (lists), S ids
of all lists, T tiles, P probes, L candidates of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from logitsieve.api.results import Int32, Int64
from logitsieve.gpu.device import to_device
from logitsieve.gpu.kernels.lists import (
    route_kernel,
    route_logits_kernel,
    shared_route_logits_kernel,
)
from logitsieve.gpu.kernels.topk import chunks_kernel, rank_kernel
from logitsieve.gpu.matrix import Matrix, matrix_on
from logitsieve.gpu.plans import Fallback, PlanOutput, empty_output
from logitsieve.gpu.plans.exact import FloatLogits

LONGEST = 1 << 13  # values that one program looks through
TILE = 8  # ids whose logits a warp computes together
FEW = 4  # rows that share loads; fewer do not
ROUTES = 64  # looked through for those of one cluster, at most


class DeviceLists(NamedTuple):
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


def lists_on(device: torch.device, offsets: Int32, ids: Int32) -> DeviceLists:
    """Copy the lists ids[offsets[c]:offsets[c+1]] there, each in the order of its ids."""
    lengths = np.diff(offsets)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    ordered = ids[np.lexsort((ids, owners))]
    counts = -(-lengths // TILE)
    lists = np.repeat(np.arange(len(lengths)), counts)
    place = np.arange(len(lists)) - np.repeat(np.cumsum(counts) - counts, counts)
    tiles = np.stack([lists, offsets[lists] + TILE * place], axis=1).astype(np.int32)
    longest = int(lengths.max())
    arrays: Any = offsets, ordered, longest, tiles
    lists_there: DeviceLists = to_device(DeviceLists(*arrays), device)
    return lists_there


def empty_routed(rows: int, probes: int, device: torch.device) -> Routed:
    return Routed(
        torch.empty((rows, probes), dtype=torch.int32, device=device),
        torch.empty((rows, probes), dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
    )


class ChunkBest:
    """The `k` best of every chunk of values [B, L], in `slots` places of `best` and `names` each.

    Without `ids` [B, L] a value's id is its place. Rows have counts [B] values.
    """

    def __init__(
        self, values: Tensor, ids: Tensor | None, routed: Routed, k: int, slots: int, chunk: int
    ) -> None:
        rows, length = values.shape
        self._from, self._routed, self._k, self._slots = (values, ids), routed, k, slots
        self._chunk, self.chunks = chunk, next_power_of_2(cdiv(length, chunk))
        shape = (rows, self.chunks * slots)
        self.best = torch.empty(shape, dtype=values.dtype, device=values.device)
        self.names = torch.empty(shape, dtype=torch.int32, device=values.device)

    def run(self) -> None:
        values, ids = self._from
        rows, length = values.shape
        chunks_kernel[(rows, self.chunks)](
            values, values if ids is None else ids, self._routed.counts, self._routed.status,
            self.best, self.names, length, self._k, self._slots,
            CHUNK=self._chunk, SLOTS=next_power_of_2(self._slots), NAMED=ids is not None,
            num_warps=self._chunk // 1024,
        )  # fmt: skip


class ListedBest:
    """Answers rows WANTED, and those REFUSED, into `found`.

    No row has more than `most` candidates, and those WANTED have k different ones.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, k: int, lists: DeviceLists, routed: Routed, most: int,
        found: PlanOutput,
    ) -> None:  # fmt: skip
        rows, device = len(hidden), hidden.device
        self._matrix, self._hidden, self._k = matrix, hidden, k
        self._lists, self._routed, self._found = lists, routed, found
        length, kept = max(16, next_power_of_2(most)), max(8, next_power_of_2(k))
        self._values = torch.empty((rows, length), dtype=torch.float64, device=device)
        self._ids = torch.empty((rows, length), dtype=torch.int32, device=device)
        self._sorted = torch.empty((rows, kept), dtype=torch.float64, device=device)
        self._levels: list[ChunkBest] = []
        self._ranked = self._values, self._ids
        while self._ranked[0].shape[1] > LONGEST:
            level = ChunkBest(*self._ranked, routed, k, kept, LONGEST)
            self._levels.append(level)
            self._ranked = level.best, level.names

    def run(self) -> None:
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
        grid = (self._routed.routes.numel(), cdiv(self._lists.longest, TILE))
        route_logits_kernel[grid](
            self._matrix.weight, self._matrix.bias, self._hidden,
            self._lists.offsets, self._lists.ids, *self._routed[:2], self._routed.status,
            self._values, self._ids, self._matrix.dim, self._values.shape[1],
            self._lists.longest.bit_length(), P=probes, TILE=TILE, num_warps=1,
        )  # fmt: skip

    def _compute_shared(self, tiles: Tensor) -> None:
        rows, probes = self._routed.routes.shape
        # So many that four of them are to one list, were all lists alike.
        block = min(
            ROUTES,
            next_power_of_2(rows * probes),
            next_power_of_2(FEW * (len(self._lists.offsets) - 1)),
        )
        shared_route_logits_kernel[(len(tiles), cdiv(rows * probes, block))](
            self._matrix.weight, self._matrix.bias, self._hidden,
            self._lists.offsets, self._lists.ids, *self._routed[:2], self._routed.status,
            self._values, self._ids, tiles, rows, self._matrix.dim, self._values.shape[1],
            self._lists.longest.bit_length(), P=probes, TILE=TILE, ROUTES=block, num_warps=1,
        )  # fmt: skip


ALONE = 1 << 16  # values of all centroids that one program reads for a row


class DeviceScreen(NamedTuple):
    """Centroids and candidate lists, on one device."""

    centroids: Matrix  # [C, D] without biases
    norms: Tensor  # [C] float64: ||v_c|| times the cluster's reach
    lists: DeviceLists
    lengths: Int64  # [C] of the lists, on the host


def screen_on(device: torch.device, arrays: Mapping[str, np.ndarray]) -> DeviceScreen:
    """Copy the arrays of a screen's part there: centroids, offsets, ids, and reaches if any."""
    centroids, offsets = arrays["centroids"], arrays["offsets"]
    norms = np.linalg.norm(
        centroids.astype(np.float64), axis=1
    )  # as kernels/screen/route.py has them
    norms *= arrays.get("reaches", np.float32(1))
    return DeviceScreen(
        matrix_on(device, centroids, np.zeros(len(centroids), np.float32)),
        to_device(norms, device),
        lists_on(device, offsets, arrays["ids"]),
        np.diff(offsets).astype(np.int64),
    )


class RoutedPlan:
    """Answers `hidden` into `found`; rows that its lists cannot answer go to the fallback.

    Answers are those of ScreenHead on the host, whose `prescreen` changes none of them and is not
    heeded here: `scanned` counts whole lists.
    """

    def __init__(
        self, matrix: Matrix, screen: DeviceScreen, hidden: Tensor, k: int, fallback: Fallback, *,
        probes: int = 1, escalate: float = -1.0,
    ) -> None:  # fmt: skip
        rows, device, clusters = len(hidden), hidden.device, screen.centroids.rows
        probes = min(probes, clusters)
        self.matrix, self.screen, self.hidden, self.k = matrix, screen, hidden, k
        self.found, self.routed = empty_output(rows, k, device), empty_routed(rows, probes, device)
        self.escalates = escalate > -1
        self.least = torch.tensor([escalate], dtype=torch.float64, device=device)
        self.scores = FloatLogits(screen.centroids.weight, screen.centroids.bias, hidden)
        self.near = torch.empty((rows, clusters), dtype=torch.int32, device=device)
        self.dots = torch.empty((rows, clusters), dtype=torch.float64, device=device)
        most = int(np.sort(screen.lengths)[-probes:].sum())
        self.listed = ListedBest(matrix, hidden, k, screen.lists, self.routed, most, self.found)
        passes_on = self.escalates or k > screen.lengths.min()
        status = self.routed.status
        self.fallback = fallback(hidden, k, self.found, status) if passes_on else None

    def run(self) -> None:
        scored = self.screen.centroids.weight.numel() > ALONE
        if scored:
            self.scores.run()
        self._route(scored)
        self.listed.run()
        if self.fallback is not None:
            self.fallback.run()

    def _route(self, scored: bool) -> None:
        (centroids, zeros, slacks), lists = self.screen.centroids, self.screen.lists
        clusters, probes = len(centroids), self.routed.routes.shape[1]
        route_kernel[(len(self.hidden),)](
            centroids, zeros, slacks, self.screen.norms, self.least, lists.offsets, lists.ids,
            self.hidden, self.matrix.limits,
            self.scores.found, self.near, self.dots, *self.routed,
            clusters, self.matrix.dim, self.k, lists.longest.bit_length(),
            P=probes, CLUSTERS=max(16, next_power_of_2(clusters)),
            SCORED=scored, ESCALATE=self.escalates,
        )  # fmt: skip


def frequency_on(device: torch.device, ids: Int32, n: int, dim: int) -> DeviceScreen:
    """The first `n` of `ids` [V] as a ScreenPlan takes them."""
    arrays = {
        "centroids": np.zeros((1, dim), np.float32),
        "offsets": np.array([0, n], np.int32),
        "ids": ids[:n],
    }
    return screen_on(device, arrays)
