"""What answers a batch: an engine over one index, or over the shards of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from logitsieve.decoding.decoder import Answering


class Point(Answering, Protocol):
    """A head at its knobs, with a normalizer ("" for none); any number of threads may call it."""

    model: str
    version: str
    digest: str
    head: str
    normalizer: str
    width: float

    @property
    def knobs(self) -> Mapping[str, float]:
        """The values of knobs, by their names."""
