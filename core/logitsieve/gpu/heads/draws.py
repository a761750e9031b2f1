"""The heads that draw from the whole softmax on a GPU: exact and certified.

The k best, log Z and draws take a pass over W each, or over the sketch.

Shape letters: B rows of hidden, D hidden size, K answers, M ids of a row, N draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Bounds, Float32, Float64, UInt64
from logitsieve.gpu.device import to_device
from logitsieve.gpu.heads.base import LARGEST_BUCKET, GpuHead, Launch, chunks, refuse_unanswered
from logitsieve.gpu.plans import LaunchPlan
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.draws import DeviceEdits, DrawPlan, draw_inputs, draw_listed
from logitsieve.gpu.plans.exact import ExactPlan, named_logits
from logitsieve.heads._base.head import Edits
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import ExactHead

AnyDrawPlan: TypeAlias = DrawPlan | CertifiedDrawPlan

SLOTS_AT_ONCE = 1 << 12  # a slot takes 64 KiB where there are 2^14 groups of ids


def rows_at_once(samples: int) -> int:
    """Rows of a plan with that many draws for each, and a slot more."""
    return max(1, min(LARGEST_BUCKET, SLOTS_AT_ONCE // (samples + 1)))


def portions(samples: int) -> Iterator[tuple[int, int]]:
    """(first draw, draws) that one plan makes after the other; one at least, for log Z."""
    most = SLOTS_AT_ONCE - 1
    for first in range(0, max(1, samples), most):
        yield first, min(most, samples - first)


class GpuDrawHead(GpuHead):
    """A head whose draws a plan finds."""

    log_z_of_row: ClassVar[tuple[int, ...]] = ()  # its shape

    @abstractmethod
    def draw_plan(self, hidden: Tensor, samples: int, edits: DeviceEdits | None) -> AnyDrawPlan:
        """The plan that draws `samples` ids for each row of hidden [B, D]."""

    def draw(
        self, hidden: Any, samples: int, seeds: UInt64 | Tensor | None, step: int, scale: float,
        edits: Edits | None, *, fine: bool = False,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Draws from softmax(scale x logits), as the head on the host has them.

        ids [B, N], log Z and scanned [B]. Tensors on the GPU (seeds int64) are answered in tensors
        there, without edits. No seeds are needed where `samples` is 0. A GPU reads fine codes
        alone, `fine` or not.
        """
        tensors = isinstance(hidden, Tensor)
        if tensors:
            hidden = self._ready(hidden)
        parts = []
        for first, count in portions(samples):
            fill = partial(_write, scale=scale, seeds=seeds, step=(step, first))
            plan, most = partial(self.draw_plan, samples=count, edits=None), rows_at_once(count)
            parts.append(
                self._draw(Launch(("draw", count), plan, fill, most), hidden, count, edits)
            )
        ids, log_z, scanned = parts[0]
        if len(parts) > 1:
            ids, scanned = torch.cat([part[0] for part in parts], 1), sum(part[2] for part in parts)
            scanned = scanned.clip(max=self._vocab_size)
        if tensors:
            return ids, log_z, scanned
        refuse_unanswered(log_z.reshape(len(hidden), -1)[:, 0].isnan())
        return ids.numpy(), log_z.numpy(), scanned.numpy()

    def _draw(
        self, launch: Launch, hidden: Any, samples: int, edits: Edits | None
    ) -> tuple[Any, Any, Any]:
        """ids [B, N] int32, log Z float64 and scanned [B] int32, on the device of hidden."""
        rows, device = len(hidden), getattr(hidden, "device", "cpu")
        ids = torch.empty((rows, samples), dtype=torch.int32, device=device)
        log_z = ids.new_empty((rows, *self.log_z_of_row), dtype=torch.float64)
        outputs = ids, log_z, ids.new_empty(rows)
        if edits is None:
            self._find(launch, hidden, outputs)
            return outputs
        for part in chunks(rows, launch.most):  # their number varies: launched without a graph
            edited: Any = cut(edits, part)
            with self.launching():
                copied = to_device(DeviceEdits(*edited), self.device)
                plan = self.draw_plan(to_device(hidden[part], self.device), samples, copied)
                launch.fill(part, plan)
                plan.run()
                for output, answer in zip(outputs, plan.output, strict=True):
                    output[part] = answer
        return outputs


def _write(
    part: slice, plan: AnyDrawPlan, *, scale: float, step: tuple[int, int],
    seeds: UInt64 | Tensor | None,
) -> None:  # fmt: skip
    """Write a plan's inputs; uint64 travel as the int64 of the same bits."""
    plan.inputs.scale.fill_(scale)
    if plan.samples and seeds is not None:
        bits = seeds[part]
        if isinstance(bits, np.ndarray):
            bits = torch.from_numpy(np.array(bits.view(np.int64)))
        plan.inputs.seeds[: len(bits)].copy_(bits)
        for place, number in zip(plan.inputs.step, step, strict=True):
            place.fill_(int(np.uint64(number).astype(np.int64)))


def cut(edits: Edits, part: slice) -> Edits:
    """The edits of some of the rows."""
    offsets, ids, values = edits
    first, last = int(offsets[part.start]), int(offsets[part.stop])
    return offsets[part.start : part.stop + 1] - first, ids[first:last], values[first:last]


class GpuExact(GpuDrawHead):
    """Looks at every row of W."""

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        return ExactPlan(self._gpu.matrix, hidden, k)

    def log_z(self, hidden: Any, scale: float, edits: Edits | None = None) -> Any:
        """[B, 4] of an array, by the host; [B] float32 of a tensor on the GPU, in one there.

        NaN for a row of a tensor that `topk` would refuse.
        """
        if not isinstance(hidden, Tensor):
            return self._on_host.log_z(hidden, scale, edits)
        return super().draw(hidden, 0, None, 0, scale, None)[1].float()

    def quick_log_z(self, hidden: Float32) -> Float64:
        """That of the head on the host."""
        return self._on_host.quick_log_z(hidden)

    def close_log_z(self, hidden: Float32) -> Float64:
        """That of the head on the host."""
        return self._on_host.close_log_z(hidden)

    @property
    def _on_host(self) -> ExactHead:
        return cast(ExactHead, self.cpu_head)

    def draw(
        self, hidden: Any, samples: int, seeds: UInt64 | Tensor | None, step: int, scale: float,
        edits: Edits | None, *, fine: bool = False,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """As `GpuDrawHead`; log Z of an array is [B, 4], by the host."""
        ids, log_z, scanned = super().draw(hidden, samples, seeds, step, scale, edits, fine=fine)
        if not isinstance(hidden, Tensor):
            log_z = self.log_z(hidden, scale, edits)
        return ids, log_z, scanned

    def logits64(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Exact logits float64 [B, M] of ids [B, M] for rows of hidden, tensors on the GPU.

        -inf for an id that is not in the vocabulary, NaN for a row that `topk` would refuse.
        Nothing is waited for. InvalidRequest names `hidden` or `ids`.
        """
        hidden = self._ready(hidden)
        if ids.is_floating_point() or ids.ndim != 2 or len(ids) != len(hidden) or not ids.numel():
            got = f"{ids.dtype} {list(ids.shape)}"
            raise InvalidRequest("ids", got, f"integers [{len(hidden)}, M], M >= 1")
        inside = torch.where((ids >= 0) & (ids < self._vocab_size), ids, -1)
        inside = inside.to(hidden.device, torch.int32)
        with self.launching():
            rows = hidden.float().contiguous()
            return named_logits(self._gpu.matrix, rows, inside.contiguous())

    def draw_listed(
        self, ids: Tensor, logits: Tensor, samples: int, seeds: Tensor, step: int,
        filters: tuple[float, float, float],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Draws and log-probabilities [B, N], log Z [B], from ids and float64 logits [B, K].

        Best first. seeds int64 [B]; `filters` are 1 / temperature, top-p and min-p.
        """
        bits = to_device(np.array([step], np.uint64).view(np.int64), self.device)
        numbers = to_device(np.array(filters), self.device)
        with self.launching():
            return draw_listed(ids, logits, samples, seeds, bits, numbers)

    def warm(self) -> None:
        """Compile, too, what draws from lists need."""
        super().warm()
        ids = torch.zeros((1, 1), dtype=torch.int32, device=self.device)
        logits = self.logits64(torch.zeros((1, self._dim), device=self.device), ids)
        self.draw_listed(ids, logits, 1, ids[0].long(), 0, (1.0, 1.0, 0.0))

    def draw_plan(self, hidden: Tensor, samples: int, edits: DeviceEdits | None) -> AnyDrawPlan:
        return DrawPlan(self._gpu.matrix, hidden, samples, draw_inputs(hidden), edits)


class GpuCertified(GpuDrawHead):
    """Bounds every row of W, and computes those whose bound leaves a doubt.

    The ids drawn are those of head `exact`; log Z is an estimate and what it is proven to lie
    between.
    """

    log_z_of_row: ClassVar[tuple[int, ...]] = (3,)

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        return CertifiedPlan(self._gpu.matrix, self._gpu.sketch, hidden, k)

    def bounds(self, hidden: ArrayLike, k: int = 1) -> Bounds:
        """The bounds of the head on the host."""
        return cast(CertifiedHead, self.cpu_head).bounds(hidden, k)

    def draw_plan(self, hidden: Tensor, samples: int, edits: DeviceEdits | None) -> AnyDrawPlan:
        gpu, inputs = self._gpu, draw_inputs(hidden)
        return CertifiedDrawPlan(gpu.matrix, gpu.sketch, hidden, samples, inputs, edits)
