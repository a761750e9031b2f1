"""The in-process decoder; the service answers through it too, so both agree bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite

import numpy as np

from logitsieve.decoding.point import Point
from logitsieve.heads.base import Head
from logitsieve.index import Index
from logitsieve.types.decoder import NormalizerName
from logitsieve.types.errors import InvalidKnob, InvalidRequest, ModelNotFound
from logitsieve.types.results import ArrayLike, TopKReply

# Operating points kept: clients use a handful, and a stream of fresh knobs must not grow memory.
POINTS_KEPT = 64

KnobValues = tuple[tuple[str, float], ...]


class LocalDecoder:
    """Answers from one open index. Any number of threads may call it."""

    def __init__(self, index: Index, *, name: str = "") -> None:
        self.index = index
        self.name = name or index.name
        self.version = str(index.version)
        self._names = ("", self.name, f"{self.name}@{self.version}")
        self._head = lru_cache(maxsize=POINTS_KEPT)(self._make_head)
        # (head or "", knobs in order of their names, normalizer or "") -> Point
        self.point = lru_cache(maxsize=POINTS_KEPT)(self._make_point)

    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        model: str = "",
        head: str = "",
        knobs: Mapping[str, float] | None = None,
        normalizer: NormalizerName | None = None,
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; see `Decoder.topk`.

        Raises InvalidRequest naming the field, ModelNotFound unless `model` is this index.
        """
        if model not in self._names:
            raise ModelNotFound(f"model: got {model}, here is only {self._names[-1]}", "model")
        values = _values(knobs) if knobs else ()
        return self.point(head, values, normalizer or "").topk(hidden, k)

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile every kernel a request may need, so that none waits for a compiler."""
        self.index.warm(progress)
        self.topk(np.zeros((1, self.index.dim), np.float32), 1, normalizer="candidates")

    def _make_head(self, name: str, knobs: KnobValues) -> Head:
        head = self.index.head(name)
        for knob, value in knobs:
            if knob not in head.knob_table:
                known = ", ".join(head.knob_table) or "no knobs"
                raise InvalidKnob(f"knobs.{knob}", value, known)
            if not isfinite(value):
                raise InvalidKnob(f"knobs.{knob}", value, "a finite number")
        return head.with_knobs(**dict(knobs))

    def _make_point(self, head: str, knobs: KnobValues, normalizer: str) -> Point:
        chosen, exact = self._head(head, knobs), self._head("exact", ())
        return Point(self.name, self.index, chosen, exact, normalizer)


def _values(knobs: Mapping[str, float]) -> KnobValues:
    try:
        return tuple(sorted((name, float(value)) for name, value in knobs.items()))
    except (TypeError, ValueError) as error:
        raise InvalidRequest("knobs", knobs, "a number for each knob's name") from error
