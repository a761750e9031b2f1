"""What every head is: the frozen softmax it answers for, and the methods it must have.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np

from logitsieve.types.results import ArrayLike, Candidates, Float32, TopK


@dataclass(frozen=True, eq=False)
class Softmax:
    """A frozen output layer: logits are `weight` [V, D] @ h + `bias` [V], float32 C-contiguous."""

    weight: Float32
    bias: Float32

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.weight.shape[0])

    @property
    def dim(self) -> int:
        """D."""
        return int(self.weight.shape[1])


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A query-time setting: what it trades, and the values it may take."""

    help: str
    default: float
    low: float
    high: float


class Head(Protocol):
    """A way to find the largest logits. Immutable; any number of threads may call one head."""

    name: ClassVar[str]
    knob_table: ClassVar[Mapping[str, Knob]]

    @property
    def knobs(self) -> Mapping[str, float]:
        """The operating point: every knob's present value."""
        ...

    @classmethod
    def from_arrays(
        cls,
        softmax: Softmax,
        arrays: Mapping[str, np.ndarray],
        *,
        fallback: Head | None,
        threads: int,
        knobs: Mapping[str, float],
    ) -> Self:
        """A head over a part's `arrays`; rows it cannot answer go to `fallback`."""
        ...

    def with_knobs(self, **knobs: float) -> Self:
        """The same arrays at another operating point; InvalidKnob if unknown or out of range."""
        ...

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best tokens of each row of `hidden` [B, D] or [D]; InvalidRequest if not."""
        ...

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """Every row of W this head would look at to answer `topk`, with exact logits."""
        ...

    def warm(self) -> None:
        """Compile (or load) every kernel this head uses, so that no request waits for it."""
        ...
