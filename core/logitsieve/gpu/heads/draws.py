"""The heads that draw from the whole softmax on a GPU: exact and certified.

The k best, log Z and draws take a pass over W each, or over the sketch.

Shape letters: B rows of hidden, D hidden size, K answers, M ids of a row, N draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Bounds, Float32, Float64, Int32, Int64, UInt64
from logitsieve.gpu.device import to_device
from logitsieve.gpu.heads.base import LARGEST_BUCKET, GpuHead, Launch, chunks, refuse_unanswered
from logitsieve.gpu.plans import LaunchPlan
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.exact import ExactPlan, LogitsPlan
from logitsieve.gpu.plans.log_z import DeviceEdits, DrawPlan, ListDraws, LogZPlan
from logitsieve.heads.certified import CertifiedHead

HostEdits: TypeAlias = tuple[Int64, Int32, Float64]
Noise: TypeAlias = tuple[Tensor, Tensor]  # seeds [B] and step [2] of plans/draws.py
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
    def draw_plan(
        self, hidden: Tensor, samples: int, noise: Noise, scale: Tensor, edits: DeviceEdits | None
    ) -> AnyDrawPlan:
        """The plan that draws `samples` ids for each row of hidden [B, D]."""

    def draw(
        self,
        hidden: Any,
        samples: int,
        seeds: Any,
        step: int,
        scale: float,
        edits: HostEdits | None,
    ) -> tuple[Any, Any, Any]:
        """Draws from softmax(scale x logits), as the head on the host has them.

        ids [B, N], log Z and scanned [B]. Tensors on the GPU (seeds int64) are answered in tensors
        there, if nothing is edited.
        """
        if isinstance(hidden, Tensor) and edits is None:
            hidden = self._ready(hidden)
        parts = [
            self._draw(
                hidden, some, partial(_write, scale=scale, seeds=seeds, step=(step, first)), edits
            )
            for first, some in portions(samples)
        ]
        if len(parts) == 1:
            return parts[0]
        ids, log_z, scanned = zip(*parts, strict=True)
        joined = torch.cat if isinstance(ids[0], Tensor) else np.concatenate
        return joined(ids, 1), log_z[0], sum(scanned).clip(max=self._vocab_size)

    def _draw(
        self,
        hidden: Any,
        samples: int,
        fill: Callable[[Any, slice], None],
        edits: HostEdits | None,
    ) -> tuple[Any, Any, Any]:
        plan, most = partial(self._plan, samples=samples), rows_at_once(samples)
        launch = Launch(("draw", samples), plan, fill, most)
        rows = len(hidden)
        if isinstance(hidden, Tensor) and edits is None:
            room = partial(torch.empty, device=hidden.device)
            tensors = (
                room((rows, samples), dtype=torch.int32),
                room((rows, *self.log_z_of_row), dtype=torch.float64),
                room(rows, dtype=torch.int32),
            )
            self._find_tensors(launch, hidden, tensors)
            return tensors
        found: tuple[np.ndarray, ...] = (
            np.empty((rows, samples), np.int32),
            np.empty((rows, *self.log_z_of_row)),
            np.empty(rows, np.int32),
        )
        if edits is None:
            self._find_arrays(launch, hidden, found)
        else:
            for part in chunks(rows, most):
                own = self._edited(launch, hidden[part], part, samples, cut(edits, part))
                for mine, theirs in zip(found, own, strict=True):
                    mine[part] = theirs
        refuse_unanswered(np.isnan(found[1].reshape(rows, -1)[:, 0]))
        return found[0], found[1], found[2]

    def _edited(
        self, launch: Launch, hidden: Float32, part: slice, samples: int, edits: HostEdits
    ) -> tuple[np.ndarray, ...]:
        """Draws with edits, whose number varies: launched without a graph."""
        device, edited = self._gpu.device, DeviceEdits(*cast(Any, edits))
        with self.launching():
            plan = self._plan(to_device(hidden, device), samples, to_device(edited, device))
            launch.fill(plan, part)
            plan.run()
            return tuple(each.cpu().numpy() for each in plan.found)

    def _plan(self, hidden: Tensor, samples: int, edits: DeviceEdits | None = None) -> AnyDrawPlan:
        seeds = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        scale = torch.ones(1, dtype=torch.float64, device=hidden.device)
        return self.draw_plan(hidden, samples, (seeds, seeds.new_zeros(2)), scale, edits)


def _write(
    plan: AnyDrawPlan, part: slice, scale: float, step: tuple[int, int], seeds: UInt64 | Tensor
) -> None:
    """Write what a plan reads besides hidden; uint64 travel as the int64 of the same bits."""
    own = seeds[part]
    bits = own if isinstance(own, Tensor) else torch.from_numpy(np.array(own.view(np.int64)))
    plan.scale.fill_(scale)
    plan.seeds[: len(bits)].copy_(bits)
    for place, number in zip(plan.step, step, strict=True):
        place.fill_(int(np.uint64(number).astype(np.int64)))


def cut(edits: HostEdits, part: slice) -> HostEdits:
    """The edits of some of the rows."""
    offsets, ids, values = edits
    first, last = int(offsets[part.start]), int(offsets[part.stop])
    return offsets[part.start : part.stop + 1] - first, ids[first:last], values[first:last]


class GpuExact(GpuDrawHead):
    """Looks at every row of W."""

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        return ExactPlan(self._gpu.matrix, hidden, k)

    def log_z(self, hidden: Any, scale: float) -> Any:
        """[B] the logarithm of the sum of e^{scale x} over all logits of rows of hidden [B, D].

        A tensor on the GPU is answered in one there, NaN for a row that `topk` would refuse.
        """
        launch = Launch(("log Z",), self._log_z_plan, partial(_scale, scale=scale))
        if isinstance(hidden, Tensor):
            hidden = self._ready(hidden)
            values = torch.empty(len(hidden), device=hidden.device)
            self._find_tensors(launch, hidden, [values])
            return values
        log_z = np.empty(len(hidden), np.float32)
        self._find_arrays(launch, hidden, [log_z])
        refuse_unanswered(np.isnan(log_z))
        return log_z

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
            plan = LogitsPlan(self._gpu.matrix, hidden.float().contiguous(), inside.contiguous())
            plan.run()
        return plan.logits

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
            plan = ListDraws(ids, logits, samples, seeds, bits, numbers)
            plan.run()
        return plan.drawn, plan.log_probs, plan.log_z

    def warm(self) -> None:
        """Compile, too, what draws from lists need."""
        super().warm()
        ids = torch.zeros((1, 1), dtype=torch.int32, device=self.device)
        logits = self.logits64(torch.zeros((1, self._dim), device=self.device), ids)
        self.draw_listed(ids, logits, 1, ids[0].long(), 0, (1.0, 1.0, 0.0))

    def draw_plan(
        self, hidden: Tensor, samples: int, noise: Noise, scale: Tensor, edits: DeviceEdits | None
    ) -> AnyDrawPlan:
        return DrawPlan(self._gpu.matrix, hidden, samples, *noise, scale, edits)

    def _log_z_plan(self, hidden: Tensor) -> LogZPlan:
        scale = torch.ones(1, dtype=torch.float64, device=hidden.device)
        return LogZPlan(self._gpu.matrix, hidden, scale)


def _scale(plan: LogZPlan, part: slice, scale: float) -> None:
    plan.scale.fill_(scale)


class GpuCertified(GpuDrawHead):
    """Bounds every row of W, and computes those whose bound leaves a doubt."""

    log_z_of_row: ClassVar[tuple[int, ...]] = (3,)

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        return CertifiedPlan(self._gpu.matrix, self._gpu.sketch, hidden, k)

    def bounds(self, hidden: ArrayLike, k: int = 1) -> Bounds:
        """The bounds of the head on the host."""
        return cast(CertifiedHead, self.cpu_head).bounds(hidden, k)

    def draw(
        self,
        hidden: Any,
        samples: int,
        seeds: Any,
        step: int,
        scale: float,
        edits: HostEdits | None,
        *,
        fine: bool = False,
    ) -> tuple[Any, Any, Any]:
        """The ids that head `exact` draws, log Z [B, 3] and scanned [B]; else as its base has it.

        log Z is an estimate and what it is proven to lie between: that of the fine codes, which
        are all that a GPU reads, `fine` or not.
        """
        return super().draw(hidden, samples, seeds, step, scale, edits)

    def draw_plan(
        self, hidden: Tensor, samples: int, noise: Noise, scale: Tensor, edits: DeviceEdits | None
    ) -> AnyDrawPlan:
        gpu = self._gpu
        return CertifiedDrawPlan(gpu.matrix, gpu.sketch, hidden, samples, *noise, scale, edits)
