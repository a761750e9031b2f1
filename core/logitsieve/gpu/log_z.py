"""log Z of rows in tensors, and how it is printed: kernels/sampling/printing.py on a GPU.

Nothing is waited for. A row that cannot be answered has NaN everywhere, and proves nothing.

Shape letters: B batch rows, M ids of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from logitsieve.decoding.log_z import PrintedLogZ
from logitsieve.kernels.sampling.printing import ROUNDED

SPREAD = 2.0**-40  # of a sum of exponentials whose exponents are 708 at most, and of its log1p
STEP = 2.0**-52  # of each of its additions


class DeviceLogZ(NamedTuple):
    """log of the sum of all e^{scale x}, for each row: scale `top` plus any of the others."""

    value: Tensor  # [B] float64, like all others
    low: Tensor  # [B] it is proven to lie between these
    high: Tensor
    top: Tensor  # [B] the largest logit, or 0
    scale: float = 1.0

    @classmethod
    def of(cls, fields: Tensor, scale: float) -> DeviceLogZ:
        """From [B, 4], TOP, VALUE, LOW and HIGH, or [B, 3], without TOP."""
        *top, value, low, high = fields.unbind(1)
        return cls(value, low, high, top[0] if top else torch.zeros_like(value), scale)

    def printed(self) -> Any:
        """PrintedLogZ in float32 tensors: what is proven is still true of what is printed."""
        base = self.scale * self.top
        low, high = base + self.low, base + self.high
        low = rounded_down(low - ROUNDED * (base.abs() + low.abs()))
        high = -rounded_down(-high - ROUNDED * (base.abs() + high.abs()))
        value: Any = (base + self.value).float().clamp(low, high)
        bounds: Any = low, high
        return PrintedLogZ(value, *bounds)

    def raised(self, logits: Tensor, ids: Tensor) -> DeviceLogZ:
        """At least the log Z of the row's different `ids` [B, M], whose logits those are."""
        ids, order = ids.sort(1)
        logits = logits.gather(1, order)
        again = torch.zeros_like(ids, dtype=torch.bool)
        again[:, 1:] = ids[:, 1:] == ids[:, :-1]
        most, place = logits.masked_fill(again, -torch.inf).max(1, keepdim=True)
        most = most.masked_fill(torch.isneginf(most), 0.0)
        weights = ((logits - most) * self.scale).exp().masked_fill(again, 0.0)
        total = weights.scatter(1, place, 0.0).sum(1) * (1 + SPREAD + logits.shape[1] * STEP)
        least = (most[:, 0] - self.top) * self.scale + total.log1p()
        return self._replace(value=torch.maximum(self.value, least + ROUNDED * least.abs()))

    def log_probs(self, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """float32 log-probabilities of ids [B, M], and [B] whether those of a row are all proven.

        Proven ones are the correctly rounded log-probability or the float32 below it.
        """
        low, proven = self._proven(logits)
        exact = proven.all(1)
        value = self.raised(logits, ids).value[:, None]
        apart = self._apart(logits)
        estimated = (apart - value - ROUNDED * (apart.abs() + value.abs())).clamp(max=0.0)
        estimated = estimated.masked_fill(apart == -torch.inf, -torch.inf)
        return rounded_down(torch.where(exact[:, None], low, estimated)), exact

    def _proven(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[B, M] lower ends, and whether each interval is under half a float32's last place."""
        apart, high = self._apart(logits), self.high[:, None]
        impossible = apart == -torch.inf
        apart = apart.masked_fill(impossible, 0.0)
        off = ROUNDED * (apart.abs() + high.abs())
        least, most = apart - high - off, apart - self.low[:, None] + off
        nearest = most.abs().float()
        place = torch.nextafter(nearest, torch.full_like(nearest, torch.inf)).double() - nearest
        place = place.masked_fill(nearest == torch.inf, torch.inf)  # beyond float32
        proven = impossible | (most - least < place / 2)
        return least.clamp(max=0.0).masked_fill(impossible, -torch.inf), proven

    def _apart(self, logits: Tensor) -> Tensor:
        return (logits - self.top[:, None]) * self.scale


def rounded_down(values: Tensor) -> Tensor:
    """The largest float32 that is not above each value."""
    nearest = values.float()
    below = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf))
    return torch.where(nearest.double() > values, below, nearest)
