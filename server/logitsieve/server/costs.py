"""What a request will cost, before it is computed: decides where it runs, never what it answers.

Shape letters: V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.json_format import ParseDict, ParseError

from logitsieve.index import Index
from logitsieve.types.errors import IndexUnreadable
from logitsieve.v1 import decoder_pb2 as pb

# An uncalibrated head is taken to read all of W, at what one core of a small machine streams.
BYTES_PER_US = 10_000


def read_points(index: Index) -> list[pb.OperatingPoint]:
    """The index's calibrated points; none where it was not calibrated."""
    points = (index.calibration or {}).get("points", [])
    try:
        return [
            ParseDict(point, pb.OperatingPoint(), ignore_unknown_fields=True) for point in points
        ]
    except (ParseError, TypeError, AttributeError) as error:
        raise IndexUnreadable(index.path / "calibration.json", f"points: {error}") from error


class Costs:
    """Microseconds of a request, from the index's calibration where it has the point asked for."""

    def __init__(self, points: Sequence[pb.OperatingPoint], index: Index) -> None:
        self._default_head = index.default_head
        self._dense_us = index.vocab_size * index.dim * 4 / BYTES_PER_US
        # The dearest point of a head is that of the smallest batch.
        self._us: dict[str, float] = {}
        for point in points:
            name = point.head.name
            self._us[name] = max(point.us_per_row, self._us.get(name, 0.0))

    def estimate_us(
        self, rows: int, head: str, knobs: Mapping[str, float], normalizer: str
    ) -> float:
        """At most about what `rows` rows take; other knobs than the calibrated ones: all of W."""
        us = self._us.get(head or self._default_head, self._dense_us)
        if knobs or normalizer == "exact":
            us = max(us, self._dense_us)
        return rows * us * (2 if normalizer else 1)
