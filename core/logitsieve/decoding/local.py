"""The in-process decoder; the service answers through it too, so both agree bit for bit.

Shape letters: B batch rows, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite

import numpy as np

from logitsieve.decoding.auto import Auto, KnobValues, Pause, measure_again, read_auto
from logitsieve.decoding.point import Point
from logitsieve.evaluation import OperatingPoint
from logitsieve.heads.base import Head, ready_hidden
from logitsieve.index import Index
from logitsieve.types.decoder import AUTO, NormalizerName, asked_precision
from logitsieve.types.errors import InvalidKnob, InvalidRequest, ModelNotFound
from logitsieve.types.results import ArrayLike, TopKReply

# Operating points kept: clients use a handful, and a stream of fresh knobs must not grow memory.
POINTS_KEPT = 64


class LocalDecoder:
    """Answers from one open index. Any number of threads may call it.

    Raises IndexUnreadable if the index has a calibration.json that is not as a builder writes it.
    """

    def __init__(self, index: Index, *, name: str = "") -> None:
        self.index = index
        self.name = name or index.name
        self.version = str(index.version)
        self._names = ("", self.name, f"{self.name}@{self.version}")
        self._head = lru_cache(maxsize=POINTS_KEPT)(self._make_head)
        # (head or "", knobs in order of their names, normalizer or "") -> Point
        self.point = lru_cache(maxsize=POINTS_KEPT)(self._make_point)
        self.auto: Auto = read_auto(index, self._head, self._make_point)

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """The measured points that AUTO chooses among; none where the index was not calibrated."""
        return self.auto.points

    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        model: str = "",
        head: str = "",
        knobs: Mapping[str, float] | None = None,
        min_precision: float | None = None,
        exact: bool = False,
        normalizer: NormalizerName | None = None,
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; see `Decoder.topk`.

        Raises InvalidRequest naming the field, ModelNotFound unless `model` is this index.
        """
        if model not in self._names:
            raise ModelNotFound(f"model: got {model}, here is only {self._names[-1]}", "model")
        precision = None
        if min_precision is not None or exact is not False or head == AUTO:
            precision = asked_precision(head, knobs, min_precision, exact)
        elif head or knobs:
            values = _values(knobs) if knobs else ()
            return self.point(head, values, normalizer or "").topk(hidden, k)
        if type(hidden) is not np.ndarray or hidden.ndim != 2:
            hidden = ready_hidden(hidden, self.index.dim)
        auto = self.auto
        kind = auto.kind(hidden.shape[0], k, precision)
        return auto.point(kind, precision, normalizer or "").topk(hidden, k)

    def measure_again(self, pause: Pause = lambda seconds: False) -> bool:
        """Time every operating point on this machine; AUTO chooses by that from then on.

        On the contexts that the index keeps for it: False if it keeps none. `pause` is called after
        each measurement with the seconds it took, and ends it all by True: then nothing changes.
        The index itself is not written to. Precision does not depend on the machine.
        """
        points = measure_again(self.index, self.auto, self._head, pause)
        if points is not None:
            self.auto = self.auto.over(points)
        return points is not None

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
