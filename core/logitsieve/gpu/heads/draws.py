"""The heads that draw from the whole softmax on a GPU: exact and certified.

The k best, log Z and draws take a pass over W each, or over the sketch.

Shape letters: B rows of hidden, D hidden size, K answers, M ids of a row, N draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Bounds, UInt64
from logitsieve.gpu.device import to_device
from logitsieve.gpu.heads.base import LARGEST_BUCKET, GpuHead, Launch, chunks, refuse_unanswered
from logitsieve.gpu.plans import LaunchPlan
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.draws import (
    DeviceEdits,
    DrawPlan,
    LogZPlan,
    draw_inputs,
    draw_listed,
)
from logitsieve.gpu.plans.exact import ExactPlan, named_logits
from logitsieve.gpu.plans.nucleus import LOGITS_AT_ONCE, NucleusPlan
from logitsieve.heads._base.draw_options import Drawn, DrawOptions
from logitsieve.heads._base.head import Edits
from logitsieve.heads.certified import CertifiedHead
from logitsieve.kernels.topk.merge import HIGH, LOW, VALUE

AnyDrawPlan: TypeAlias = DrawPlan | CertifiedDrawPlan
Room: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # a row's shape and type in an output

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

    @abstractmethod
    def draw_plan(self, hidden: Tensor, edits: DeviceEdits | None, samples: int) -> AnyDrawPlan:
        """The plan that draws `samples` ids for each row of hidden [B, D]."""

    def draw(self, hidden: Any, options: DrawOptions) -> Drawn:
        """The draws of the head on the host, and log Z.

        Tensors on the GPU (seeds int64) are answered in tensors there, without edits or filters.
        The interval of log Z is that of the fine codes, whatever the `width`; with filters, that of
        all logits.
        """
        samples, seeds, step, scale, edits, top_p, min_p, *_ = options
        drawing = hidden, samples, seeds, step
        if not options.filtered:
            return Drawn(*self.draw_in_bounds(*drawing, scale, edits))
        ids, _, log_z = self.draw_filtered(*drawing, (scale, top_p, min_p), edits)
        return Drawn(ids, log_z, np.full(len(ids), self._vocab_size, np.int32))

    def draw_in_bounds(
        self, hidden: Any, samples: int, seeds: UInt64 | Tensor | None, step: int, scale: float,
        edits: Edits | None = None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Draw likewise; log Z [B, 4] is an estimate and what it is proven to lie between."""
        parts = []
        for first, count in portions(samples):
            fill = partial(_write, scale=scale, seeds=seeds, step=(step, first))
            make, most = partial(self.draw_plan, samples=count), rows_at_once(count)
            launch = Launch(("draw", count), partial(make, edits=None), fill, most)
            rooms = ((count,), torch.int32), ((3,), torch.float64), ((), torch.int32)
            parts.append(self._sums(launch, make, hidden, edits, rooms))
        scanned: Any = sum(part[2] for part in parts)
        return _joined(parts, 0), _fields(parts[0][1]), scanned.clip(max=self._vocab_size)

    def draw_filtered(
        self, hidden: Any, samples: int, seeds: UInt64 | Tensor | None, step: int,
        filters: tuple[float, float, float], edits: Edits | None = None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Draws and their logits [B, N], log Z [B, 4], of what top-p and min-p leave of all of V.

        `filters` are the factor of logits, top-p and min-p. -1 and NaN for a row of a tensor that
        `topk` would refuse.
        """
        (scale, *limits), parts = filters, []
        for first, count in portions(samples):
            whole = limits[0] == 1.0
            make = partial(self._nucleus_plan, samples=count, whole=whole)
            inputs = partial(_write, scale=scale, seeds=seeds, step=(step, first))
            fill = partial(_write_filters, limits=limits, write=inputs)
            most = max(1, min(rows_at_once(count), LOGITS_AT_ONCE // self._vocab_size))
            launch = Launch(("nucleus", count, whole), partial(make, edits=None), fill, most)
            rooms = ((count,), torch.int32), ((count,), torch.float64), ((4,), torch.float64)
            parts.append(self._sums(launch, make, hidden, edits, rooms))
        return _joined(parts, 0), _joined(parts, 1), parts[0][2]

    def _nucleus_plan(
        self, hidden: Tensor, edits: DeviceEdits | None, samples: int, whole: bool
    ) -> NucleusPlan:
        inputs = draw_inputs(hidden)
        return NucleusPlan(self._gpu.matrix, hidden, samples, inputs, edits, whole=whole)

    def _sums(
        self, launch: Launch, make: Callable[..., Any], hidden: Any, edits: Edits | None,
        rooms: Sequence[Room],
    ) -> tuple[Any, ...]:  # fmt: skip
        """The outputs of `make`, the plan of hidden and edits, in arrays if hidden is one.

        The float64 output begins with NaN in rows that cannot be answered: InvalidRequest for one
        of an array.
        """
        tensors = isinstance(hidden, Tensor)
        if tensors:
            hidden = self._ready(hidden)
        rows, device = len(hidden), hidden.device if tensors else "cpu"
        outputs = [torch.empty((rows, *row), dtype=of, device=device) for row, of in rooms]
        if edits is None:
            self._find(launch, hidden, outputs)
        else:
            self._find_edited(launch, make, hidden, edits, outputs)
        if tensors:
            return tuple(outputs)
        log_z = next(output for output in outputs if output.is_floating_point())
        refuse_unanswered(log_z[:, 0].isnan())
        return tuple(output.numpy() for output in outputs)

    def _find_edited(
        self, launch: Launch, make: Callable[..., Any], hidden: Any, edits: Edits,
        outputs: Sequence[Tensor],
    ) -> None:  # fmt: skip
        for part in chunks(len(hidden), launch.most):  # their number varies: no graph
            edited: Any = cut(edits, part)
            with self.launching():
                copied = to_device(DeviceEdits(*edited), self.device)
                plan = make(to_device(hidden[part], self.device), edits=copied)
                launch.fill(part, plan)
                plan.run()
                for output, answer in zip(outputs, plan.output, strict=True):
                    output[part] = answer


def _fields(interval: Any) -> Any:
    """log Z [B, 4] of an interval [B, 3], with a TOP of 0."""
    if isinstance(interval, Tensor):
        return torch.nn.functional.pad(interval, (1, 0))
    fields = np.pad(interval, ((0, 0), (1, 0)))
    fields[:, VALUE] = np.minimum(np.maximum(fields[:, VALUE], fields[:, LOW]), fields[:, HIGH])
    return fields


def _joined(parts: Sequence[tuple[Any, ...]], place: int) -> Any:
    """Draws of several plans side by side: what each has at that place."""
    join: Any = torch.cat if isinstance(parts[0][place], Tensor) else np.concatenate
    return join([part[place] for part in parts], 1)


def _write(
    part: slice, plan: AnyDrawPlan | LogZPlan | NucleusPlan, *, scale: float, step: tuple[int, int],
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


def _write_filters(
    part: slice, plan: NucleusPlan, *, limits: Sequence[float], write: Callable[..., None]
) -> None:
    """Write top-p and min-p beside the inputs."""
    write(part, plan)
    for place, limit in zip(plan.filters, limits, strict=True):
        place.fill_(limit)


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
        """[B, 4] log Z of all e^{scale x}: `top`, the rest, and its bounds, where hidden is.

        NaN for a row of a tensor that `topk` would refuse.
        """
        make, fill = self._log_z_plan, partial(_write, scale=scale, seeds=None, step=(0, 0))
        launch = Launch(("log_z",), partial(make, edits=None), fill)
        return self._sums(launch, make, hidden, edits, [((4,), torch.float64)])[0]

    def _log_z_plan(self, hidden: Tensor, edits: DeviceEdits | None) -> LogZPlan:
        return LogZPlan(self._gpu.matrix, hidden, draw_inputs(hidden), edits)

    def quick_log_z(self, hidden: Any) -> Any:
        """[B, 4] an estimate of log Z and a proven interval, mostly from float32 dots."""
        return self.draw_in_bounds(hidden, 0, None, 0, 1.0)[1]

    def draw(self, hidden: Any, options: DrawOptions) -> Drawn:
        """Draw as `GpuDrawHead` does; log Z is that of all exact logits."""
        drawn = super().draw(hidden, options)
        if options.filtered:
            return drawn
        return drawn._replace(log_z=self.log_z(hidden, options.scale, options.edits))

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
        """Draws and their logits [B, N], log Z [B, 4], from ids and float64 logits [B, K].

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

    def draw_plan(self, hidden: Tensor, edits: DeviceEdits | None, samples: int) -> AnyDrawPlan:
        return DrawPlan(self._gpu.matrix, hidden, samples, draw_inputs(hidden), edits)


class GpuCertified(GpuDrawHead):
    """Bounds every row of W, and computes those whose bound leaves a doubt.

    The ids drawn are those of head `exact`; log Z is an estimate and what it is proven to lie
    between.
    """

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        return CertifiedPlan(self._gpu.matrix, self._gpu.sketch, hidden, k)

    def bounds(self, hidden: ArrayLike, k: int = 1) -> Bounds:
        """The bounds of the head on the host."""
        return cast(CertifiedHead, self.cpu_head).bounds(hidden, k)

    def log_z(
        self, hidden: Any, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Any:
        """[B, 4] an estimate of log Z and a proven interval, that of the fine codes."""
        return self.draw_in_bounds(hidden, 0, None, 0, scale, edits)[1]

    def draw_plan(self, hidden: Tensor, edits: DeviceEdits | None, samples: int) -> AnyDrawPlan:
        gpu, inputs = self._gpu, draw_inputs(hidden)
        return CertifiedDrawPlan(gpu.matrix, gpu.sketch, hidden, samples, inputs, edits)
