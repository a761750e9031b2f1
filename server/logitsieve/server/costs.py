"""What a request will cost, before it is computed: decides where it runs, never what it answers.

Shape letters: V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logitsieve.evaluation import OperatingPoint
from logitsieve.index import Index

# A point that was not measured is taken to read all of W, at what one core of a small machine
# streams.
BYTES_PER_US = 10_000


class Costs:
    """Microseconds a row, from the index's calibration where it has the point asked for."""

    def __init__(self, points: Sequence[OperatingPoint], index: Index) -> None:
        self._dense_us = index.vocab_size * index.dim * 4 / BYTES_PER_US
        self._points = {(point.head, _key(point.knobs)): point for point in points}

    def us_per_row(
        self, head: str, knobs: Mapping[str, float], normalizer: str, rows: int
    ) -> float:
        """At most about what a row takes, by the batch size nearest to `rows` a call."""
        point = self._points.get((head, _key(knobs)))
        us = self._dense_us if point is None else point.us_at(rows)
        if normalizer == "exact":
            us = max(us, self._dense_us)
        return us * (2 if normalizer else 1)


def _key(knobs: Mapping[str, float]) -> frozenset[tuple[str, float]]:
    return frozenset(knobs.items())
