"""The drift guard: AUTO leaves a point with a live precision below the one asked for.

When the lower 95 % bound of a point's misses exceeds a request's allowance in two windows in a row,
proven points answer such requests until the version is loaded again. Two windows, because each of
many is a chance to be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from logitsieve.decoding.auto import Goal
from logitsieve.evaluation.operating_points import OperatingPoint, Setting
from logitsieve.evaluation.precision import lower_bound

WINDOW = 100  # judged rows


class DriftGuard:
    def __init__(self) -> None:
        self._shares: defaultdict[tuple[Setting, int], list[float]] = defaultdict(list)
        self._last: dict[tuple[Setting, int], float] = {}
        self._ceilings: dict[tuple[Setting, int], float] = {}

    def add(self, setting: Setting, shares: Mapping[int, float]) -> bool:
        told = {k: self._add((setting, k), share) for k, share in shares.items()}
        return any(told.values())

    def refuted(self, point: OperatingPoint, goal: Goal) -> bool:
        """Return True if live answers of `point` miss more than `goal` allows."""
        return not point.proven and any(
            self._ceilings.get((point.setting, k), 1.0) < least for k, least in goal.items()
        )

    def _add(self, key: tuple[Setting, int], share: float) -> bool:
        shares = self._shares[key]
        shares.append(share)
        if len(shares) < WINDOW:
            return False
        ceiling = 1.0 - lower_bound(1.0 - np.array(shares))
        shares.clear()
        both = max(ceiling, self._last.get(key, 1.0))
        self._last[key] = ceiling
        if both >= self._ceilings.get(key, 1.0):
            return False
        self._ceilings[key] = both
        return True
