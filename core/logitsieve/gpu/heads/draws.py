"""Draws from the whole softmax on a GPU, as arrays or tensors, of rows with edits or without.

Shape letters: B rows of hidden, D hidden size, N draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float32, Float64, Int32, Int64, UInt64
from logitsieve.gpu.heads.head import (
    LARGEST_BUCKET,
    Asked,
    GpuHead,
    refuse_unanswered,
    turns,
)
from logitsieve.gpu.matrix import on
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.draws import DrawPlan
from logitsieve.gpu.plans.log_z import Edits

HostEdits: TypeAlias = tuple[Int64, Int32, Float64]
Noise: TypeAlias = tuple[Tensor, Tensor]  # seeds [B] and step [2] of plans/draws.py
AnyDrawPlan: TypeAlias = DrawPlan | CertifiedDrawPlan

SLOTS_AT_ONCE = 1 << 12  # a slot takes 64 KiB where there are 2^14 groups of ids


def rows_at_once(samples: int) -> int:
    """Rows of a plan that draws so many ids for each, and needs a slot more."""
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
        self, hidden: Tensor, samples: int, noise: Noise, scale: Tensor, edits: Edits | None
    ) -> AnyDrawPlan:
        """What draws `samples` ids for each row of hidden [B, D]."""

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
        found = [
            self._draw(
                hidden, some, partial(_write, scale=scale, seeds=seeds, step=(step, first)), edits
            )
            for first, some in portions(samples)
        ]
        if len(found) == 1:
            return found[0]
        ids, log_z, scanned = zip(*found, strict=True)
        joined = torch.cat if isinstance(ids[0], Tensor) else np.concatenate
        return joined(ids, 1), log_z[0], sum(scanned).clip(max=self._vocab_size)

    def _draw(
        self,
        hidden: Any,
        samples: int,
        fill: Callable[[Any, slice], None],
        edits: HostEdits | None,
    ) -> tuple[Any, Any, Any]:
        """As many draws as a plan holds."""
        plan, most = partial(self._plan, samples=samples), rows_at_once(samples)
        asked = Asked(("draw", samples), plan, fill, most)
        rows = len(hidden)
        if isinstance(hidden, Tensor) and edits is None:
            room = partial(torch.empty, device=hidden.device)
            there = (
                room((rows, samples), dtype=torch.int32),
                room((rows, *self.log_z_of_row), dtype=torch.float64),
                room(rows, dtype=torch.int32),
            )
            self._find_tensors(asked, hidden, there)
            return there
        found: tuple[np.ndarray, ...] = (
            np.empty((rows, samples), np.int32),
            np.empty((rows, *self.log_z_of_row)),
            np.empty(rows, np.int32),
        )
        if edits is None:
            self._find_arrays(asked, hidden, found)
        else:
            for part in turns(rows, most):
                own = self._edited(asked, hidden[part], part, samples, cut(edits, part))
                for mine, theirs in zip(found, own, strict=True):
                    mine[part] = theirs
        refuse_unanswered(np.isnan(found[1].reshape(rows, -1)[:, 0]))
        return found[0], found[1], found[2]

    def _edited(
        self, asked: Asked, hidden: Float32, part: slice, samples: int, edits: HostEdits
    ) -> tuple[np.ndarray, ...]:
        """As many edits as there happen to be: launched without a graph."""
        device = self._gpu.device
        with self.launching():
            plan = self._plan(on(device, hidden), samples, Edits(*(on(device, e) for e in edits)))
            asked.fill(plan, part)
            plan.run()
            return tuple(each.cpu().numpy() for each in plan.found)

    def _plan(self, hidden: Tensor, samples: int, edits: Edits | None = None) -> AnyDrawPlan:
        seeds = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        scale = torch.ones(1, dtype=torch.float64, device=hidden.device)
        return self.draw_plan(hidden, samples, (seeds, seeds.new_zeros(2)), scale, edits)


def _write(
    plan: AnyDrawPlan, part: slice, scale: float, step: tuple[int, int], seeds: UInt64 | Tensor
) -> None:
    """What a plan reads besides hidden; uint64 travel as the int64 of the same bits."""
    own = seeds[part]
    bits = own if isinstance(own, Tensor) else torch.from_numpy(np.array(own.view(np.int64)))
    plan.scale.fill_(scale)
    plan.seeds[: len(bits)].copy_(bits)
    for place, number in zip(plan.step, step, strict=True):
        place.fill_(int(np.uint64(number).astype(np.int64)))


def cut(edits: HostEdits, part: slice) -> HostEdits:
    """Those of some of the rows."""
    offsets, ids, values = edits
    first, last = int(offsets[part.start]), int(offsets[part.stop])
    return offsets[part.start : part.stop + 1] - first, ids[first:last], values[first:last]
