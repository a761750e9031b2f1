"""The drift guard: evidence from live answers, by which AUTO leaves a point or returns to it.

A point is refuted at an asked precision when it surely misses more than that allows: when, at two
looks in a row, the lower 95 % confidence bound of its misses is above what may be missed. Looks are
few, after 50, 100, 200, 400 and 800 rows, because each is a chance to be wrong. It is accepted
again when a whole window of 800 rows has the asked precision: so it does not swing on a doubt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from logitsieve.decoding.engine import Engine
from logitsieve.evaluation import OperatingPoint
from logitsieve.evaluation.precision import lower_bound

FIRST = 50  # rows; the bounds of evaluation/precision.py look at blocks from so many on
WINDOW = 800

Key = tuple[str, frozenset[tuple[str, float]]]
# Points that AUTO has left, and the one that it is at; None is the exact head, or the default one.
Downgrades = tuple[OperatingPoint | None, ...]


class Move(NamedTuple):
    safer: bool  # or back
    source: str  # the points, as people read them
    destination: str


class Evidence:
    """The judged rows of one point at one k; `ceiling` is a precision that it does not exceed."""

    def __init__(self) -> None:
        self.ceiling = 1.0
        self._shares: list[float] = []
        self._look = FIRST
        self._limit = 1.0  # at the last look

    def add(self, share: float) -> bool:
        self._shares.append(share)
        if len(self._shares) < self._look:
            return False
        shares = np.array(self._shares)
        limit = 1.0 - lower_bound(1.0 - shares)
        self.ceiling = min(self.ceiling, max(limit, self._limit))
        self._limit = limit
        if len(shares) < WINDOW:
            self._look *= 2
        else:
            self.ceiling = max(self.ceiling, float(shares.mean()))
            self._shares.clear()
            self._look = FIRST
        return True


class DriftGuard:
    """The evidence about the points of one version. Used by the event loop alone."""

    def __init__(self) -> None:
        self._evidence: defaultdict[tuple[Key, int], Evidence] = defaultdict(Evidence)

    def add(self, point: Engine, shares: Mapping[int, float]) -> bool:
        key = point.head, frozenset(point.knobs.items())
        changed = [self._evidence[key, k].add(share) for k, share in shares.items()]
        return any(changed)

    def ceiling(self, point: OperatingPoint, k: int) -> float:
        """The precision that live rows leave possible at class `k`; 1 without evidence."""
        evidence = self._evidence.get(((point.head, frozenset(point.knobs.items())), k))
        return 1.0 if evidence is None else evidence.ceiling


def move_between(before: Downgrades, after: Downgrades) -> Move:
    source, destination = (
        "exact" if points[-1] is None else points[-1].label for points in (before, after)
    )
    return Move(len(after) > len(before), source, destination)
