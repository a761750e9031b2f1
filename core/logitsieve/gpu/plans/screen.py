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
from logitsieve.gpu.plans import Fallback, PlanOutput, empty_output, float64s, int32s
from logitsieve.gpu.plans.exact import FloatLogits

LONGEST = 1 << 13  # values that one program looks through
TILE = 8  # ids whose logits a warp computes together
FEW = 4  # rows that share loads; fewer do not
ROUTES = 64  # looked through for those of one cluster, at most
ALONE = 1 << 16  # values of all centroids that one program reads for a row


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
    arrays: Any = offsets, ordered, int(lengths.max()), tiles
    copied: DeviceLists = to_device(DeviceLists(*arrays), device)
    return copied


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
        self.best = values.new_empty(rows, self.chunks * slots)
        self.names = int32s(values, rows, self.chunks * slots)

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
    """Answers rows WANTED, and those REFUSED, into `output`.

    No row has more than `most` candidates, and those WANTED have k different ones.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, k: int, lists: DeviceLists, routed: Routed, most: int,
        output: PlanOutput,
    ) -> None:  # fmt: skip
        rows, length, kept = len(hidden), max(16, next_power_of_2(most)), max(8, next_power_of_2(k))
        self._matrix, self._hidden, self._k = matrix, hidden, k
        self._lists, self._routed, self._output = lists, routed, output
        self._values, self._ids = float64s(hidden, rows, length), int32s(hidden, rows, length)
        self._sorted = float64s(hidden, rows, kept)
        self._levels: list[ChunkBest] = []
        self._ranked = self._values, self._ids
        while self._ranked[0].shape[1] > LONGEST:
            level = ChunkBest(*self._ranked, routed, k, kept, LONGEST)
            self._levels.append(level)
            self._ranked = level.best, level.names

    def run(self) -> None:
        (rows, probes), lists, dim = self._routed.routes.shape, self._lists, self._matrix.dim
        arrays = (
            *self._matrix[:2], self._hidden, lists.offsets, lists.ids, *self._routed[:2],
            self._routed.status, self._values, self._ids,
        )  # fmt: skip
        length, steps = self._values.shape[1], lists.longest.bit_length()
        if rows < FEW or lists.tiles is None:
            route_logits_kernel[(rows * probes, cdiv(lists.longest, TILE))](
                *arrays, dim, length, steps, P=probes, TILE=TILE, num_warps=1
            )
        else:
            # So many that four of them are to one list, were all lists alike.
            alike = next_power_of_2(FEW * (len(lists.offsets) - 1))
            block = min(ROUTES, next_power_of_2(rows * probes), alike)
            shared_route_logits_kernel[(len(lists.tiles), cdiv(rows * probes, block))](
                *arrays, lists.tiles, rows, dim, length, steps,
                P=probes, TILE=TILE, ROUTES=block, num_warps=1,
            )  # fmt: skip
        for level in self._levels:
            level.run()
        values, ids = self._ranked
        # A row's count is that of all its candidates: no fewer than are left of them.
        rank_kernel[(rows,)](
            values, ids, self._routed.counts, self._routed.status, self._sorted, *self._output,
            self._k, 1, 0,
            L=values.shape[1], KEPT=self._sorted.shape[1], PROVEN=False, num_warps=8,
        )  # fmt: skip


class DeviceScreen(NamedTuple):
    """Centroids and candidate lists, on one device."""

    centroids: Matrix  # [C, D] without biases
    norms: Tensor  # [C] float64: ||v_c|| times the cluster's reach
    lists: DeviceLists
    lengths: Int64  # [C] of the lists, on the host


def screen_on(device: torch.device, arrays: Mapping[str, np.ndarray]) -> DeviceScreen:
    """Copy the arrays of a screen's part there: centroids, offsets, ids, and reaches if any."""
    centroids, offsets = arrays["centroids"], arrays["offsets"]
    norms = np.linalg.norm(centroids.astype(np.float64), axis=1)  # as kernels/screen/route.py does
    norms *= arrays.get("reaches", np.float32(1))
    return DeviceScreen(
        matrix_on(device, centroids, np.zeros(len(centroids), np.float32)),
        to_device(norms, device),
        lists_on(device, offsets, arrays["ids"]),
        np.diff(offsets).astype(np.int64),
    )


class RoutedPlan:
    """Answers `hidden` into `output`; rows that its lists cannot answer go to the fallback.

    Answers are those of ScreenHead on the host, whose `prescreen` changes none of them and is not
    heeded here: `scanned` counts whole lists.
    """

    def __init__(
        self, matrix: Matrix, screen: DeviceScreen, hidden: Tensor, k: int, fallback: Fallback, *,
        probes: int = 1, escalate: float = -1.0,
    ) -> None:  # fmt: skip
        rows, clusters = len(hidden), screen.centroids.rows
        probes = min(probes, clusters)
        self.matrix, self.screen, self.hidden, self.k = matrix, screen, hidden, k
        self.output, self.escalates = empty_output(rows, k, hidden.device), escalate > -1
        routes, starts = (int32s(hidden, rows, probes) for _ in range(2))
        self.routed = Routed(routes, starts, int32s(hidden, rows), int32s(hidden, rows))
        self.least = float64s(hidden, 1).fill_(escalate)
        self.scores = FloatLogits(screen.centroids.weight, screen.centroids.bias, hidden)
        self.near, self.dots = int32s(hidden, rows, clusters), float64s(hidden, rows, clusters)
        most = int(np.sort(screen.lengths)[-probes:].sum())
        self.listed = ListedBest(matrix, hidden, k, screen.lists, self.routed, most, self.output)
        passes_on, status = self.escalates or k > screen.lengths.min(), self.routed.status
        self.fallback = fallback(hidden, k, (self.output, status)) if passes_on else None

    def run(self) -> None:
        scored = self.screen.centroids.weight.numel() > ALONE
        if scored:
            self.scores.run()
        (centroids, zeros, slacks), lists = self.screen.centroids, self.screen.lists
        clusters, probes = len(centroids), self.routed.routes.shape[1]
        route_kernel[(len(self.hidden),)](
            centroids, zeros, slacks, self.screen.norms, self.least, lists.offsets, lists.ids,
            self.hidden, self.matrix.limits,
            self.scores.logits, self.near, self.dots, *self.routed,
            clusters, self.matrix.dim, self.k, lists.longest.bit_length(),
            P=probes, CLUSTERS=max(16, next_power_of_2(clusters)),
            SCORED=scored, ESCALATE=self.escalates,
        )  # fmt: skip
        self.listed.run()
        if self.fallback is not None:
            self.fallback.run()


def frequency_on(device: torch.device, ids: Int32, n: int, dim: int) -> DeviceScreen:
    """The first `n` of `ids` [V] as the one list of a screen."""
    arrays = {
        "centroids": np.zeros((1, dim), np.float32),
        "offsets": np.array([0, n], np.int32),
        "ids": ids[:n],
    }
    return screen_on(device, arrays)
