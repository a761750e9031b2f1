"""AUTO: the operating point that a request gets when it names no head.

The choice depends on the kind of a request: which measured batch size is nearest to its rows, and
which measured k its k is rounded up to. It is made once for each kind.

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from logitsieve.api.decoder import KnobValues, PointRequest
from logitsieve.api.errors import InvalidKnob
from logitsieve.decoding.engine import Engine
from logitsieve.evaluation import (
    Chooser,
    OperatingPoint,
    cpu_name,
    read_points,
    read_target,
)
from logitsieve.evaluation.operating_points import k_class
from logitsieve.heads._base.head import Head, checked_k
from logitsieve.index import Index
from logitsieve.index.files import unreadable
from logitsieve.index.manifest import CALIBRATION_FILE

# Choices kept: batch sizes times ks times the precisions that clients ask for.
CHOICES_KEPT = 256

Kind = tuple[int, int]  # (a measured batch size, a class of k)
HeadOf = Callable[[str, KnobValues], Head]
EngineOf = Callable[[str, KnobValues, str, float], Engine]


class Auto(Chooser):
    """Chooses among measured points, and makes engines of them. Any number of threads may call it.

    `target`, k -> precision, is what the index was built for; empty where it was built for none.
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        target: Mapping[int, float],
        vocab_size: int,
        engine_of: EngineOf,
    ) -> None:
        super().__init__(points, target)
        self._vocab_size, self._engine_of = vocab_size, engine_of
        # (kind, the request's precision or None, normalizer or "", width) -> Engine
        self.engine = lru_cache(maxsize=CHOICES_KEPT)(self._engine)

    def downgrades(
        self, kind: Kind, precision: float | None, ceiling: Callable[[OperatingPoint, int], float]
    ) -> tuple[OperatingPoint | None, ...]:
        """The points that live answers refute, cheapest first, and the one that answers instead.

        `ceiling(point, k)` is the precision that the point was seen to reach at most at a class of
        k. None, which can only be the last, is the exact head; if it is also the first and there is
        no precision, the default head.
        """
        batch, k = kind
        goal, chosen = self.goal(k, precision), [self.choose(batch, k, precision)]
        while (point := chosen[-1]) is not None and not point.proven:
            if all(ceiling(point, each) >= least for each, least in goal.items()):
                break
            chosen.append(self.next_safer(point, batch, goal))
        return tuple(chosen)

    def kind(self, rows: int, k: int, precision: float | None) -> Kind:
        """The kind of a request, which decides its point; the index's own target ignores k.

        InvalidRequest for a precision at a k that is not in 1 .. V.
        """
        if precision is None:
            return self.batch(rows), 0
        return self.batch(rows), k_class(checked_k(k, self._vocab_size))

    def _engine(
        self, kind: Kind, precision: float | None, normalizer: str, width: float = inf
    ) -> Engine:
        chosen = self.choose(*kind, precision)
        if chosen is None:
            return self._engine_of("" if precision is None else "exact", (), normalizer, width)
        knobs = tuple(sorted(chosen.knobs.items()))
        return self._engine_of(chosen.head, knobs, normalizer, width)


def read_auto(index: Index, head_of: HeadOf, engine_of: EngineOf) -> Auto:
    """AUTO over the points of calibration.json, and over none where there is no such file.

    Points of heads that the index or this version lacks are left out. A point is proven if its
    head proves its answers, whatever the file says. IndexUnreadable names what is
    wrong with the file.
    """
    points = []
    measured = index.measured
    for point in read_points(measured["points"] if measured is not None else ()):
        if point.head not in index.heads:
            continue
        try:
            head = head_of(point.head, tuple(sorted(point.knobs.items())))
        except InvalidKnob as error:
            raise unreadable(index.path / CALIBRATION_FILE, f"points: {error}") from error
        # All knobs: a file older than one of them does not name it.
        points.append(replace(point, proven=head.proves, knobs=dict(head.knobs)))
    return Auto(points, read_target(index.manifest.config), index.vocab_size, engine_of)


def proving_draws(request: PointRequest, index: Index) -> PointRequest:
    """The point of a request for draws: a head that proves them, if it leaves the choice to AUTO.

    Calibration times the best ids, not draws, so the choice among proving heads does not depend on
    it: `certified` where the index has it, else `exact`. A precision is AUTO's to meet as always.
    """
    if not request.automatic or request.precision is not None:
        return request
    head = "certified" if "certified" in index.heads else "exact"
    return request._replace(automatic=False, head=head)


def answers_on(index: Index) -> str:
    """The processor, or the GPU, that the index answers on, as the system names it."""
    return index.backend.name if index.backend else cpu_name()


def measured_elsewhere(index: Index) -> str:
    """Return the processor or GPU of the calibration if the index answers on another, else ""."""
    measured_on = "" if index.measured is None else str(index.measured["machine"]["cpu"])
    return "" if measured_on == answers_on(index) else measured_on
