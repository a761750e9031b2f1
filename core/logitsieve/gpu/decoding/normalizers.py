"""log Z of rows of hidden on a GPU: the normalizers that need nobody on the host.

Shape letters: B batch rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from logitsieve.decoding.normalizers import CERTIFIED, EXACT, LogZ
from logitsieve.gpu.heads.exact import GpuExact
from logitsieve.index import Index


class Known(NamedTuple):
    """log Z as it is told, and in float64."""

    told: LogZ
    value: Tensor  # [B]


def log_z(*found: Tensor) -> LogZ:
    """A value, and perhaps its bounds: tensors [B]."""
    return LogZ(*cast(Any, found))


def of_number(found: Tensor) -> Known:
    """Of [B] float64."""
    return Known(log_z(found.float()), found)


def of_interval(found: Tensor) -> Known:
    """Of [B, 3]: an estimate and what it lies between, as `interval` rounds them on the host."""
    value, low, high = found.float().unbind(1)
    infinite = torch.full_like(low, torch.inf)
    low = torch.where(low > found[:, 1], torch.nextafter(low, -infinite), low)
    high = torch.where(high < found[:, 2], torch.nextafter(high, infinite), high)
    return Known(
        log_z(value.clamp(low, high), low, high), found[:, 0].clamp(found[:, 1], found[:, 2])
    )


def over_vocabulary(index: Index, hidden: Tensor, scale: float) -> LogZ:
    """The number itself."""
    return log_z(cast(GpuExact, index.head("exact")).log_z(hidden, scale))


def with_proof(index: Index, hidden: Tensor, scale: float) -> LogZ:
    """The interval that the sketch proves."""
    seeds = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
    source = cast(Any, index.head("certified"))
    return of_interval(source.draw(hidden, 0, seeds, 0, scale, None)[1]).told


# (index, hidden [B, D], scale) -> log Z of all V, NaN where a row cannot be answered
NORMALIZERS: Mapping[str, Callable[[Index, Tensor, float], LogZ]] = {
    EXACT.name: over_vocabulary,
    CERTIFIED.name: with_proof,
}
# What heads of these names find of log Z while they draw.
DRAWN: Mapping[str, Callable[[Tensor], Known]] = {"exact": of_number, "certified": of_interval}


def normalizes_there(index: Index, normalizer: str) -> bool:
    """Whether the GPU finds it, or none is asked for; what the index has no head for it does not.

    The host refuses that by name.
    """
    known = normalizer in NORMALIZERS and normalizer in index.heads
    return known or not normalizer
