"""A loaded version, and what is looked up once for each operating point that clients ask for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.local import POINTS_KEPT, KnobValues
from logitsieve.decoding.point import Point
from logitsieve.server.codec import to_origin
from logitsieve.server.costs import Costs
from logitsieve.v1 import decoder_pb2 as pb


class Priced(NamedTuple):
    """An operating point, what a row of it should cost, and how each of its responses begins."""

    point: Point
    us_per_row: float
    origin: bytes


class Served:
    """A loaded version: what answers for it, and what it was measured to cost."""

    def __init__(
        self, decoder: LocalDecoder, costs: Costs, points: Sequence[pb.OperatingPoint]
    ) -> None:
        self.decoder = decoder
        self.points = points
        self._costs = costs
        # (head or "", knobs in order of their names, normalizer or "") -> Priced
        self.at = lru_cache(maxsize=POINTS_KEPT)(self._at)

    def _at(self, head: str, knobs: KnobValues, normalizer: str) -> Priced:
        point = self.decoder.point(head, knobs, normalizer)
        us = self._costs.estimate_us(1, head, dict(knobs), normalizer)
        # Messages may be sent in pieces: protobuf merges what follows into what it has read.
        return Priced(point, us, to_origin(point).SerializeToString())
