"""Heads over arrays of their own that prove nothing, with another head behind them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import ClassVar, Self

from logitsieve.heads._base.head import Head, Knob, Softmax, checked_knobs, require_part
from logitsieve.heads._base.spec import Arrays, PartSpec


class FallbackHead:
    """What heads with a fallback share: how they are made, and moved to other knobs."""

    name: ClassVar[str]
    knob_table: ClassVar[Mapping[str, Knob]]
    part: ClassVar[PartSpec | None]
    proves: ClassVar[bool] = False
    borrows: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        softmax: Softmax,
        arrays: Arrays,
        *,
        fallback: Head,
        threads: int,
        knobs: Mapping[str, float],
    ) -> None:
        self._softmax, self._arrays, self._fallback = softmax, arrays, fallback
        self._threads = threads
        self._open()
        self.knobs = self.held(knobs, arrays, softmax)
        self._settle()

    def _open(self) -> None:
        """What the arrays need whatever the knobs; shared by all operating points."""

    @classmethod
    def held(cls, knobs: Mapping[str, float], arrays: Arrays, softmax: Softmax) -> dict[str, float]:
        """The knobs within what the arrays have: no more clusters than there are, say."""
        return dict(knobs)

    def _settle(self) -> None:
        """What an operating point needs; `knobs` are held already."""

    @classmethod
    def from_arrays(
        cls,
        softmax: Softmax,
        arrays: Arrays,
        *,
        fallback: Head | None,
        threads: int,
        knobs: Mapping[str, float],
    ) -> Self:
        """InvalidRequest unless the arrays are as `part` says."""
        assert fallback is not None, "rows without enough candidates need a fallback"
        require_part(cls.part, arrays, softmax)
        point = checked_knobs(cls.knob_table, {}, knobs)
        return cls(softmax, arrays, fallback=fallback, threads=threads, knobs=point)

    def with_knobs(self, **knobs: float) -> Self:
        """The same arrays at another operating point."""
        other = copy(self)
        point = checked_knobs(self.knob_table, self.knobs, knobs)
        other.knobs = self.held(point, self._arrays, self._softmax)
        other._settle()
        return other
