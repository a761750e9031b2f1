"""Heads that answer for the whole softmax: `exact`, and by it the heads with a sketch."""

from collections.abc import Iterator
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.gpu.device import computing, to_device, to_host
from logitsieve.gpu.gumbel_draws import draw, fields_of, weights_of
from logitsieve.gpu.heads.base import DeviceHead, Ranked, joined, rank_all, rank_by_scores
from logitsieve.heads._base.head import Edits
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import Drawn, DrawOptions, ExactHead


class AllRows(DeviceHead):
    def _prepare(self) -> None:
        super()._prepare()
        self.quick_best = False  # a draw is a pass over W on the device

    def find(self, hidden: Tensor, k: int) -> Ranked:
        return rank_by_scores(self.matrix, hidden, k)

    def finish(self, hidden: Tensor, k: int) -> Ranked:
        slices = self.matrix.slices(len(hidden))
        return joined([rank_all(self.matrix, hidden[part], k) for part in slices])


class GpuExact(AllRows, ExactHead):
    def log_z(self, hidden: Float32, scale: float, edits: Edits | None = None) -> Float64:
        with self.uploaded(hidden) as rows:
            return to_host(self._log_z(rows, scale, edits))

    def quick_log_z(
        self, hidden: Float32, scale: float = 1.0, edits: Edits | None = None
    ) -> Float64:
        return self.log_z(hidden, scale, edits)

    def best_with_log_z(
        self, hidden: Float32, k: int, scale: float = 1.0
    ) -> tuple[Int32, Float64, Float64]:
        with self.uploaded(hidden) as rows:
            found, log_z = self.find_all(rows, k, True), self._log_z(rows, scale)
            return to_host(found.ids), to_host(found.logits), to_host(log_z)

    def draw(self, hidden: Float32, options: DrawOptions) -> Drawn:
        with self.uploaded(hidden) as rows:
            keys = to_device(options.seeds.view(np.int64), rows.device)
            parts = self._all(rows, options.edits)
            drawn = [draw(logits, keys[part], options) for part, logits in parts]
            ids, log_z = (to_host(torch.cat(each)) for each in zip(*drawn, strict=True))
        return Drawn(ids, log_z, np.full(len(ids), self._vocab_size, np.int32))

    def _log_z(self, hidden: Tensor, scale: float, edits: Edits | None = None) -> Tensor:
        parts = self._all(hidden, edits)
        return torch.cat([fields_of(*weights_of(logits, scale)) for _, logits in parts])

    def _all(self, hidden: Tensor, edits: Edits | None) -> Iterator[tuple[slice, Tensor]]:
        for part in self.matrix.slices(len(hidden)):
            logits = self.matrix.logits64(hidden[part])
            if edits is not None:
                offsets, ids, values = edits
                ends = offsets[part.start : part.stop + 1]
                changed = slice(ends[0], ends[-1])
                rows = np.repeat(np.arange(len(logits)), np.diff(ends))
                places = (to_device(each, hidden.device).long() for each in (rows, ids[changed]))
                logits[tuple(places)] = to_device(values[changed], hidden.device)
            yield part, logits

    def logits64(self, hidden: Any, ids: Tensor) -> Tensor:
        """Return exact logits of ids [B, M] on the device (-inf: unknown); or InvalidRequest."""
        hidden = self.device_rows(hidden)
        if ids.is_floating_point() or ids.ndim != 2 or len(ids) != len(hidden) or not ids.numel():
            got = f"{ids.dtype} {list(ids.shape)}"
            raise InvalidRequest("ids", got, f"integers [{len(hidden)}, M], M >= 1")
        with computing(self.matrix.device):
            inside = ids.masked_fill((ids < 0) | (ids >= self._vocab_size), -1)
            logits = self.matrix.logits64(hidden, inside.to(hidden.device, torch.int32))
            return logits.masked_fill(~self.matrix.admissible(hidden)[:, None], torch.nan)


class GpuCertified(AllRows, CertifiedHead):
    """Answers by the head `exact`, which proves as much: a pass over W is short on a GPU."""

    @cached_property
    def _exact(self) -> GpuExact:
        return GpuExact(self._softmax)

    def log_z(
        self, hidden: Float32, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Float64:
        return self._exact.log_z(hidden, scale, edits)

    def draw(self, hidden: Float32, options: DrawOptions) -> Drawn:
        return self._exact.draw(hidden, options)


class GpuAssured(GpuCertified):
    """Proven here, unlike on the host."""

    name = "assured"


class GpuEstimated(GpuCertified):
    name = "estimated"
