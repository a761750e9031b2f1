"""Heads on a GPU, with the names of the host's. Shape letter: R rank."""

from collections.abc import Iterator
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.mask import unpacked
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.gpu.device import computing, to_device, to_host
from logitsieve.gpu.device_head import DeviceHead, Ranked, joined, rank, rank_by_scores, rank_of
from logitsieve.gpu.gumbel_draws import draw, fields_of, weights_of
from logitsieve.gpu.matrix import exact_logits
from logitsieve.heads._base.edits import Edits
from logitsieve.heads._base.head import by_knob
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.full import Drawn, FullHead
from logitsieve.heads.screen import ScreenHead
from logitsieve.heads.sketch import SketchHead
from logitsieve.heads.svd import SvdHead


class AllRows(DeviceHead):
    """Answers for the whole softmax: `full` and, by it, `sketch`."""

    def _prepare(self) -> None:
        super()._prepare()
        self.quick_best = False  # a draw is a pass over W on the device

    def masked(self, mask: Int32) -> Self:
        return super(DeviceHead, self).masked(mask)

    def find_all(self, hidden_states: Tensor, k: int, finished: bool) -> Ranked:
        if self._mask is None:
            return super().find_all(hidden_states, k, finished)
        parts = []
        for part in self.matrix.slices(len(hidden_states)):
            logits = self.forbid(self.matrix.logits64(hidden_states[part]), part)
            parts.append(rank_of(logits, k))
        return joined(parts)

    def forbid(self, logits: Tensor, part: slice) -> Tensor:
        if self._mask is None:
            return logits
        bits = to_device(unpacked(self._mask[part], self._vocab_size), logits.device)
        return logits.masked_fill(~bits, -torch.inf)

    def find(self, hidden_states: Tensor, k: int) -> Ranked:
        return rank_by_scores(self.matrix, hidden_states, k)

    def finish(self, hidden_states: Tensor, k: int) -> Ranked:
        slices = self.matrix.slices(len(hidden_states))
        return joined([rank_of(self.matrix.logits64(hidden_states[part]), k) for part in slices])


class GpuFull(AllRows, FullHead):
    def log_z(self, hidden_states: Float32, scale: float, edits: Edits | None = None) -> Float64:
        with self.uploaded(hidden_states) as rows:
            return to_host(self._log_z(rows, scale, edits))

    def quick_log_z(
        self, hidden_states: Float32, scale: float = 1.0, edits: Edits | None = None
    ) -> Float64:
        return self.log_z(hidden_states, scale, edits)

    def _pass(
        self, hidden_states: Float32, k: int, scale: float, edits: Edits, coded: bool = False
    ) -> tuple[Int32, Float64, Float64]:
        with self.uploaded(hidden_states) as rows:
            found, log_z = self.find_all(rows, k, True), self._log_z(rows, scale)
            return to_host(found.ids), to_host(found.logits), to_host(log_z)

    def draw(
        self, hidden_states: Float32, how: Sampling, scale: float = 1.0,
        edits: Edits | None = None, first_id: int = 0,
    ) -> Drawn:  # fmt: skip
        with self.uploaded(hidden_states) as rows:
            keys = to_device(how.seeds.view(np.int64), rows.device)
            parts = self._all(rows, edits)
            drawn = [draw(logits, keys[part], how, scale, first_id) for part, logits in parts]
            ids, log_z = (to_host(torch.cat(each)) for each in zip(*drawn, strict=True))
        return Drawn(ids, log_z, np.full(len(ids), self._vocab_size, np.int32))

    def _log_z(self, hidden_states: Tensor, scale: float, edits: Edits | None = None) -> Tensor:
        parts = self._all(hidden_states, edits)
        return torch.cat([fields_of(*weights_of(logits, scale)) for _, logits in parts])

    def _all(self, hidden_states: Tensor, edits: Edits | None) -> Iterator[tuple[slice, Tensor]]:
        for part in self.matrix.slices(len(hidden_states)):
            logits = self.forbid(self.matrix.logits64(hidden_states[part]), part)
            if edits is not None:
                offsets, ids, values = edits.arrays
                ends = offsets[part.start : part.stop + 1]
                changed = slice(ends[0], ends[-1])
                rows = np.repeat(np.arange(len(logits)), np.diff(ends))
                places = (
                    to_device(each, hidden_states.device).long() for each in (rows, ids[changed])
                )
                logits[tuple(places)] = to_device(values[changed], hidden_states.device)
            yield part, logits

    def logits64(self, hidden_states: Any, ids: Tensor) -> Tensor:
        """Return exact logits of ids [B, M], -inf for unknown ids; or InvalidRequest."""
        hidden_states = self.device_rows(hidden_states)
        if (
            ids.is_floating_point()
            or ids.ndim != 2
            or len(ids) != len(hidden_states)
            or not ids.numel()
        ):
            got = f"{ids.dtype} {list(ids.shape)}"
            raise InvalidRequest("ids", got, f"integers [{len(hidden_states)}, M], M >= 1")
        with computing(self.matrix.device):
            inside = ids.masked_fill((ids < 0) | (ids >= self._vocab_size), -1)
            logits = self.matrix.logits64(
                hidden_states, inside.to(hidden_states.device, torch.int32)
            )
            return logits.masked_fill(~self.matrix.admissible(hidden_states)[:, None], torch.nan)


class GpuSketch(AllRows, SketchHead):
    """Answers like `full`, so always with a proof: a pass over W is short on a GPU."""

    limits = by_knob(max_error=lambda *_: 0.0)

    @cached_property
    def _full(self) -> GpuFull:
        return GpuFull(self._softmax)

    def log_z(
        self, hidden_states: Float32, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Float64:
        return self._full.log_z(hidden_states, scale, edits)


class DeviceLists(NamedTuple):
    centroids: Tensor  # float32 [C, D]
    biases: Tensor  # float32 [C], 0
    clusters: Tensor  # int32 [C], 0, 1, ...
    reaches: Tensor  # float64 [C] norms of centroids, times the part's `reaches`
    starts: Tensor  # int64 [C] first place of a list in `ids`
    lengths: Tensor  # int64 [C]
    ids: Tensor  # int32, then `longest` zeros, which are masked
    shortest: int
    longest: int

    @classmethod
    def of(cls, arrays: Arrays, device: torch.device) -> Self:
        centroids, offsets = arrays["centroids"], arrays["offsets"].astype(np.int64)
        count, lengths = len(centroids), np.diff(offsets)
        reaches = np.linalg.norm(centroids.astype(np.float64), axis=1)
        if "reaches" in arrays:
            reaches = reaches * arrays["reaches"]
        longest = int(lengths.max())
        ids = np.append(arrays["ids"], np.zeros(longest, np.int32))
        host = (
            centroids, np.zeros(count, np.float32), np.arange(count, dtype=np.int32),
            reaches, offsets[:-1], lengths, ids,
        )  # fmt: skip
        with computing(device):
            fields: Any = *(to_device(each, device) for each in host), int(lengths.min()), longest
            return cls(*fields)


class GpuScreen(DeviceHead, ScreenHead):
    """The learned screen. Routes are by exact dots with all centroids, so they equal the host's."""

    def _prepare(self) -> None:
        super()._prepare()
        self.estimates_log_z = False
        self._lists = DeviceLists.of(self._arrays, self.matrix.device)

    @property
    def columns(self) -> int:
        return int(self.knobs["probes"]) * self._lists.longest

    def must_finish(self, k: int) -> bool:
        return k > self._lists.shortest or self.knobs["escalate"] > -1

    def find(self, hidden_states: Tensor, k: int) -> Ranked:
        lists, rows = self._lists, len(hidden_states)
        chosen, far = self._routes(hidden_states)
        lengths = lists.lengths[chosen].masked_fill(far[:, None], 0)
        place = torch.arange(max(lists.longest, k), device=hidden_states.device)
        inside = place < lengths[..., None]
        ids = lists.ids[(lists.starts[chosen][..., None] + place).masked_fill(~inside, 0)]
        ids = ids.masked_fill(~inside, -1).view(rows, -1)
        if chosen.shape[1] > 1:
            ids = _distinct(ids)
        proven = torch.zeros(rows, dtype=torch.bool, device=hidden_states.device)
        scanned = lengths.sum(dim=1).masked_fill((ids >= 0).sum(dim=1) < k, -1)
        return Ranked(*rank(self.matrix, hidden_states, ids, k), proven, scanned.int())

    def _routes(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        lists, probes = self._lists, int(self.knobs["probes"])
        every = lists.clusters.expand(len(hidden_states), -1)
        dots = exact_logits(lists.centroids, lists.biases, hidden_states, every)
        dots, chosen = dots.sort(dim=1, descending=True, stable=True)
        norms = torch.linalg.vector_norm(hidden_states, dim=1, dtype=torch.float64)
        least = self.knobs["escalate"] * norms * lists.reaches[chosen[:, 0]]
        far = (dots[:, 0] < least) & (self.knobs["escalate"] > -1)
        return chosen[:, :probes], far


def _distinct(ids: Tensor) -> Tensor:
    ids = ids.sort(dim=1).values
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
    return ids.masked_fill(repeated, -1)


class GpuSvd(DeviceHead, SvdHead):
    """SVD-softmax.

    PyTorch sums in its own order, so if rounding decides the last candidates, they may differ from
    the host's or from another batch's.
    """

    def _prepare(self) -> None:
        super()._prepare()
        device, groups = self.matrix.device, self._arrays["preview"]
        with computing(device):
            self._basis = to_device(self._arrays["basis"], device)  # [R, D]
            columns = to_device(groups, device).transpose(1, 2)  # [V / 16, 16, R]
            self._columns = columns.reshape(-1, groups.shape[1])[: self._vocab_size]

    def must_finish(self, k: int) -> bool:
        return k > self.knobs["candidates"]

    def find(self, hidden_states: Tensor, k: int) -> Ranked:
        count = int(self.knobs["candidates"])
        scanned = torch.full(
            (len(hidden_states),), count, dtype=torch.int32, device=hidden_states.device
        )
        proven = torch.zeros_like(scanned, dtype=torch.bool)
        if k > count:
            empty = hidden_states.new_empty(len(hidden_states), k)
            return Ranked(empty.int(), empty.double(), proven, scanned.fill_(-1))
        return Ranked(
            *rank(self.matrix, hidden_states, self._chosen(hidden_states), k), proven, scanned
        )

    def select(self, hidden_states: Float32, k: int) -> tuple[Int64, Int32]:
        with self.uploaded(hidden_states) as rows:
            chosen = to_host(self._chosen(rows)).astype(np.int32)
        return np.arange(0, chosen.size + 1, chosen.shape[1]), chosen.ravel()

    def _chosen(self, hidden_states: Tensor) -> Tensor:
        width, count = int(self.knobs["width"]), int(self.knobs["candidates"])
        turned = hidden_states @ self._basis[:width].T
        previews = torch.addmm(self.matrix.bias, turned, self._columns[:, :width].T)
        return previews.topk(count, dim=1).indices.int()


GPU_HEADS: dict[str, type[DeviceHead]] = {
    "full": GpuFull,
    "sketch": GpuSketch,
    "screen": GpuScreen,
    "svd": GpuSvd,
}
