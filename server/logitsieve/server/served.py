"""A loaded version, and what is looked up once for each operating point that clients ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.auto import CHOICES_KEPT, Kind
from logitsieve.decoding.local import POINTS_KEPT
from logitsieve.decoding.point import Point
from logitsieve.evaluation import OperatingPoint
from logitsieve.server.costs import Costs
from logitsieve.server.replies import to_origin
from logitsieve.types.decoder import Aim, KnobValues
from logitsieve.v1 import decoder_pb2 as pb


class Priced(NamedTuple):
    """An operating point, what it should cost, and how each of its responses begins."""

    point: Point
    us_per_row: float
    us_beside: Callable[[int, int], float]  # of so many more logits and draws
    origin: bytes


class Served:
    """A loaded version: what answers for it, and what it was measured to cost."""

    def __init__(self, decoder: LocalDecoder) -> None:
        self.decoder = decoder
        self._prices = _Prices(decoder)

    def at(self, aim: Aim, rows: int, k: int, log_z: bool = False) -> Priced:
        """What answers a request for `k` ids of each of `rows` rows.

        `log_z`: it finds one also where it names no normalizer.
        """
        prices = self._prices
        if not aim.automatic:
            return prices.named(aim.head, aim.knobs, aim.normalizer, log_z)
        kind = prices.auto.kind(rows, k, aim.precision)
        return prices.chosen(kind, aim.precision, aim.normalizer, log_z)

    @property
    def points(self) -> list[pb.OperatingPoint]:
        """The measured points, one for each batch size, as clients see them."""
        return [message for point in self.decoder.points for message in to_messages(point)]

    def measure_again(self, pause: Callable[[float], bool]) -> bool:
        """As LocalDecoder does: choices and prices change together, between two requests."""
        found = self.decoder.measure_again(pause)
        if found:
            self._prices = _Prices(self.decoder)
        return found


class _Prices:
    """Points and their prices as of one measurement."""

    def __init__(self, decoder: LocalDecoder) -> None:
        self._decoder, self.auto = decoder, decoder.auto
        self._costs = Costs(self.auto.points, decoder.index)
        # (head or "", knobs in order of their names, normalizer or "", log Z anyhow) -> Priced
        self.named = lru_cache(maxsize=POINTS_KEPT)(self._named)
        # (kind of request, asked precision or None, normalizer or "", log Z anyhow) -> Priced
        self.chosen = lru_cache(maxsize=CHOICES_KEPT)(self._chosen)

    def _named(self, head: str, knobs: KnobValues, normalizer: str, log_z: bool) -> Priced:
        return self._priced(self._decoder.point(head, knobs, normalizer), 1, log_z)

    def _chosen(self, kind: Kind, precision: float | None, normalizer: str, log_z: bool) -> Priced:
        return self._priced(self.auto.point(kind, precision, normalizer), kind[0], log_z)

    def _priced(self, point: Point, rows: int, log_z: bool) -> Priced:
        costs = self._costs
        us = costs.us_per_row(point.head, point.knobs, point.normalizer, rows, log_z)
        return Priced(point, us, costs.us_beside, to_origin(point))


def to_messages(point: OperatingPoint) -> list[pb.OperatingPoint]:
    """One message for each batch size."""
    return [
        pb.OperatingPoint(
            head=pb.Head(name=point.head, knobs=point.knobs),
            rows=rows,
            us_per_row=us,
            precision_at=point.mean,
            mass_kept=point.mass_kept,
            proven=point.proven,
        )
        for rows, us in point.us_per_row.items()
    ]
