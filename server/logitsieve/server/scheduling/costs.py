"""Estimated cost of a request: decides where it runs, never what it answers.

Shape letters: V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from logitsieve.decoding.normalizers import NORMALIZERS, Prices, default_normalizer
from logitsieve.evaluation import OperatingPoint
from logitsieve.index import Index

# A point that was not measured is taken to read all of W, at what one core of a small machine
# streams.
BYTES_PER_US = 10_000

# A pass over all V takes at least what it takes to read a byte for each number of W.
BYTE_OF_FLOAT = 1 / 4

# A draw is taken to need a random number for each id, as a draw of the exact head does.
US_PER_RANDOM = 0.02


class Costs:
    """Microseconds per row, from the index's calibration where it has the point."""

    def __init__(self, points: Sequence[OperatingPoint], index: Index) -> None:
        self._us_per_logit = index.dim * 4 / BYTES_PER_US
        self._us_per_draw = index.vocab_size * US_PER_RANDOM
        self._dense_us = index.vocab_size * self._us_per_logit
        self._vocab_size = index.vocab_size
        self._default = default_normalizer(index)
        self._points = {(point.head, _key(point.knobs)): point for point in points}

    def us_per_row(
        self, head: str, knobs: Mapping[str, float], normalizer: str, rows: int, log_z: bool
    ) -> float:
        """About the most that a row takes, by the batch size nearest to `rows` per call.

        `log_z`: a log Z is needed also where no normalizer is named.
        """
        point = self._points.get((head, _key(knobs)))
        us = self._dense_us if point is None else point.us_at(rows)
        if normalizer or log_z:
            pass_us = partial(self._pass_us, rows)
            prices = Prices(us, self._us_per_logit, self._vocab_size, pass_us)
            us += NORMALIZERS[normalizer or self._default].cost(prices)
        return us

    def us_beside(self, logits: int, draws: int) -> float:
        """Microseconds for so many more logits and draws, all rows of a request together."""
        return logits * self._us_per_logit + draws * self._us_per_draw

    def _pass_us(self, rows: int, head: str) -> float:
        """A pass over all V as `head` makes it costs what the head's dearest point does."""
        alike = [point for point in self._points.values() if point.head == head]
        us = max((point.us_at(rows) for point in alike), default=self._dense_us)
        return max(us, BYTE_OF_FLOAT * self._dense_us)


def _key(knobs: Mapping[str, float]) -> frozenset[tuple[str, float]]:
    return frozenset(knobs.items())
