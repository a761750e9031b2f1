"""An estimate of log Z by the sketch's fine codes, and the interval that is proven to hold it.

Rows with much of the weight are computed exactly. Needs the index's `certified` head.

Shape letters: B batch rows, D hidden size.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.decoding.logit_edits import Edits
from logitsieve.decoding.normalizers.base import LogZ, Normalizer, Prices
from logitsieve.decoding.normalizers.candidates import CandidatesNormalizer
from logitsieve.heads._base.head import Head
from logitsieve.heads.certified import CertifiedHead
from logitsieve.index import Index


class CertifiedNormalizer(Normalizer):
    """A proven interval around an estimate; a point where all that remains is computed."""

    name, code, has_bounds = "certified", 4, True

    def needs(self, head: Head) -> str:
        """The head with the sketch."""
        return "certified"

    def log_z(
        self,
        index: Index,
        head: Head,
        hidden: Float32,
        k: int,
        edits: Edits | None,
        scale: float,
    ) -> LogZ:
        """`low` and `high` are rounded outward."""
        source = cast(CertifiedHead, self.source(index, head))
        if edits is not None and edits.allow_list.any():
            return self._mixed(index, head, hidden, k, edits, scale)
        seeds = np.zeros(len(hidden), np.uint64)
        log_z = source.draw(hidden, 0, seeds, 0, scale, edits and edits[:3], fine=True)[1]
        return interval(log_z)

    def cost(self, prices: Prices) -> float:
        """A pass of the sketch."""
        return prices.pass_us("certified")

    def _mixed(
        self, index: Index, head: Head, hidden: Float32, k: int, edits: Edits, scale: float
    ) -> LogZ:
        """Rows with an allow list are computed whole: those need no proof."""
        log_z = np.empty((3, len(hidden)), np.float32)
        parts = (edits.allow_list, CandidatesNormalizer()), (~edits.allow_list, self)
        for rows, normalizer in parts:
            places = np.flatnonzero(rows)
            if places.size:
                part = edits.rows(places)
                one = normalizer.log_z(index, head, hidden[places], k, part, scale)
                log_z[:, places] = one.value if one.low is None else one[:3]
        return LogZ(*log_z)


def interval(log_z: Float64) -> LogZ:
    """float32 of [B, 3]: an estimate, and what encloses the interval it is proven to lie in."""
    infinite = np.float32(np.inf)
    with np.errstate(over="ignore"):  # what is beyond float32 lies between its end and infinity
        value, low, high = log_z.astype(np.float32).T
        low = np.where(low > log_z[:, 1], np.nextafter(low, -infinite), low)
        high = np.where(high < log_z[:, 2], np.nextafter(high, infinite), high)
    return LogZ(np.clip(value, low, high), low, high)
