"""The exact head on a card: the k best, log Z and draws, each in a pass over W.

Shape letters: B rows of hidden, D hidden size, K answers, N draws.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from logitsieve.heads.base import no_edits
from logitsieve.heads.card.device import using
from logitsieve.heads.card.head import Asked, CardHead, refuse_unanswered, turns
from logitsieve.kernels.gpu.matrix import on
from logitsieve.kernels.gpu.plans import Plan
from logitsieve.kernels.gpu.plans.draws import DrawPlan
from logitsieve.kernels.gpu.plans.exact import ExactPlan
from logitsieve.kernels.gpu.plans.log_z import Edits, LogZPlan
from logitsieve.kernels.gpu.plans.logits import LogitsPlan
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Float32, Float64, Int32, Int64, UInt64

HostEdits: TypeAlias = tuple[Int64, Int32, Float64]


class CardExact(CardHead):
    """Looks at every row of W."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """One pass over W."""
        return ExactPlan(self._card.matrix, hidden, k)

    def log_z(self, hidden: Any, scale: float) -> Any:
        """[B] the logarithm of the sum of e^{scale x} over all logits of rows of hidden [B, D].

        A tensor on the card is answered in one there, NaN for a row that `topk` would refuse.
        """
        asked = Asked(("log Z",), self._log_z_plan, partial(_write, scale=scale))
        if isinstance(hidden, Tensor):
            hidden = self._ready(hidden)
            told = torch.empty(len(hidden), device=hidden.device)
            self._find_tensors(asked, hidden, [told])
            return told
        found = np.empty(len(hidden), np.float32)
        self._find_arrays(asked, hidden, [found])
        refuse_unanswered(np.isnan(found))
        return found

    def logits(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """`logits64`, rounded to float32."""
        return self.logits64(hidden, ids).float()

    def logits64(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Exact logits float64 [B, M] of ids [B, M] for rows of hidden, tensors on the card.

        -inf for an id that is not in the vocabulary, NaN for a row that `topk` would refuse.
        Nothing is waited for. InvalidRequest names `hidden` or `ids`.
        """
        hidden = self._ready(hidden)
        if ids.is_floating_point() or ids.ndim != 2 or len(ids) != len(hidden) or not ids.numel():
            got = f"{ids.dtype} {list(ids.shape)}"
            raise InvalidRequest("ids", got, f"integers [{len(hidden)}, M], M >= 1")
        known = torch.where((ids >= 0) & (ids < self._vocab_size), ids, -1)
        known = known.to(hidden.device, torch.int32)
        with using(self._card.device), self._card.turn:
            plan = LogitsPlan(self._card.matrix, hidden.float().contiguous(), known.contiguous())
            plan.run()
        return plan.logits

    def draw(
        self,
        hidden: Any,
        samples: int,
        seeds: Any,
        step: int,
        scale: float,
        edits: HostEdits | None,
    ) -> tuple[Any, Any, Any]:
        """Draws from softmax(scale x logits), as ExactHead has them: ids, log Z and scanned.

        Tensors on the card (seeds int64) are answered in tensors there, if nothing is edited.
        """
        draw = partial(_write, scale=scale, step=step, seeds=seeds)
        asked = Asked(("draw", samples), partial(self._draw_plan, samples=samples), draw)
        rows = len(hidden)
        if isinstance(hidden, Tensor) and edits is None:
            hidden = self._ready(hidden)
            ids = torch.empty((rows, samples), dtype=torch.int32, device=hidden.device)
            log_z = torch.empty(rows, dtype=torch.float64, device=hidden.device)
            self._find_tensors(asked, hidden, [ids, log_z])
            return ids, log_z, torch.full_like(log_z, self._vocab_size, dtype=torch.int32)
        found = np.empty((rows, samples), np.int32), np.empty(rows)
        if edits is None and samples:
            self._find_arrays(asked, hidden, found)
        else:
            for part in turns(rows):
                own = self._edited(
                    hidden[part], samples, seeds[part], step, scale, _cut(edits, part)
                )
                found[0][part], found[1][part] = own
        refuse_unanswered(np.isnan(found[1]))
        return *found, np.full(rows, self._vocab_size, np.int32)

    def _edited(
        self,
        hidden: Float32,
        samples: int,
        seeds: UInt64,
        step: int,
        scale: float,
        edits: HostEdits,
    ) -> tuple[Int32, Float64]:
        """As many edits as there happen to be: launched without a graph."""
        device = self._card.device
        with using(device), self._card.turn:
            there = Edits(*(on(device, each) for each in edits))
            rows = on(device, hidden)
            if samples:
                plan: LogZPlan = self._draw_plan(rows, samples, there)
                ids = plan.found[0]
            else:
                plan = self._log_z_plan(rows, there)
                ids = torch.empty((len(rows), 0), dtype=torch.int32)
            _write(plan, slice(0, len(rows)), scale, step, seeds)
            plan.run()
            return ids.cpu().numpy(), plan.log_z.double().cpu().numpy()

    def _log_z_plan(self, hidden: Tensor, edits: Edits | None = None) -> LogZPlan:
        scale = torch.ones(1, dtype=torch.float64, device=hidden.device)
        return LogZPlan(self._card.matrix, hidden, scale, edits)

    def _draw_plan(self, hidden: Tensor, samples: int, edits: Edits | None = None) -> DrawPlan:
        seeds = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        scale = torch.ones(1, dtype=torch.float64, device=hidden.device)
        step = torch.zeros_like(seeds[:1])
        return DrawPlan(self._card.matrix, hidden, samples, seeds, step, scale, edits)


def _write(
    plan: LogZPlan, part: slice, scale: float, step: int = 0, seeds: UInt64 | Tensor | None = None
) -> None:
    """What a plan reads besides hidden; uint64 travel as the int64 of the same bits."""
    plan.scale.fill_(scale)
    if isinstance(plan, DrawPlan) and seeds is not None:
        own = seeds[part]
        bits = own if isinstance(own, Tensor) else torch.from_numpy(np.array(own.view(np.int64)))
        plan.seeds[: len(bits)].copy_(bits)
        plan.step.fill_(int(np.uint64(step).astype(np.int64)))


def _cut(edits: HostEdits | None, part: slice) -> HostEdits:
    """Those of some of the rows."""
    if edits is None:
        return no_edits(part.stop - part.start)
    offsets, ids, values = edits
    first, last = int(offsets[part.start]), int(offsets[part.stop])
    return offsets[part.start : part.stop + 1] - first, ids[first:last], values[first:last]
