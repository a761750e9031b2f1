"""log Z of rows, with what is proven of it, and the log-probabilities that follow from it.

Computed in float64, printed in float32: bounds are rounded outward, log-probabilities down, so that
none is above 0 and those of one row add up to 1 at most (docs/exactness.md).

Shape letters: B batch rows, M ids of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.kernels.sampling.log_z import FIELDS, HIGH, TOP, csr_log_z

ROUNDED = 2.0**-50  # of the numbers that are added up: more than a few roundings to float64


class PrintedLogZ(NamedTuple):
    """log Z as answers have it, float32 [B]."""

    value: Float32 | None
    low: Float32 | None = None  # it is proven to lie between these
    high: Float32 | None = None
    error: Float32 | None = None  # the standard error of an estimate


class LogZ(NamedTuple):
    """log of the sum of all e^{scale x}, for each row: scale `top` plus any of the others."""

    value: Float64  # [B]
    low: Float64 | None = None  # [B] it is proven to lie between these
    high: Float64 | None = None  # [B]
    error: Float64 | None = None  # [B] the standard error of an estimate
    top: Float64 | float = 0.0  # [B] the largest logit, or 0
    scale: float = 1.0

    @classmethod
    def of(cls, fields: Float64, scale: float, *, bounds: bool = True) -> LogZ:
        """From [B, 4], TOP, VALUE, LOW and HIGH of kernels/sampling/log_z.py."""
        top, value, low, high = fields.T
        return (
            cls(value, low, high, None, top, scale)
            if bounds
            else cls(value, None, None, None, top, scale)
        )

    @classmethod
    def joined(cls, parts: Sequence[LogZ], rows: Sequence[Int64]) -> LogZ:
        """One of several parts that have bounds; rows[i] are the rows of parts[i]."""
        fields = np.empty((sum(map(len, rows)), FIELDS))
        for part, places in zip(parts, rows, strict=True):
            for field, values in enumerate((part.top, part.value, part.low, part.high)):
                fields[places, field] = values
        return cls.of(fields, parts[0].scale)

    def bounds(self) -> Float64:
        """[B, 2] two numbers that log Z is proven to lie between."""
        assert self.low is not None
        assert self.high is not None
        base = np.multiply(self.scale, self.top)
        off = ROUNDED * (np.abs(base) + np.abs(self.high))
        return np.stack([base + self.low - off, base + self.high + off], axis=-1)

    def printed(self) -> PrintedLogZ:
        """In float32: what is proven is still true of what is printed."""
        with np.errstate(over="ignore"):  # what is beyond float32 lies between its end and infinity
            value = (np.multiply(self.scale, self.top) + self.value).astype(np.float32)
            error = None if self.error is None else self.error.astype(np.float32)
            if self.low is None:
                return PrintedLogZ(value, error=error)
            low, high = self.bounds().T
            low, high = rounded_down(low), -rounded_down(-high)
        return PrintedLogZ(np.clip(value, low, high), low, high, error)

    def raised(self, logits: Float64, ids: Int32) -> LogZ:
        """At least the log Z of the row's different `ids` [B, M], whose logits those are.

        An estimate may be below that, and then probabilities would add up to more than 1.
        """
        order = np.argsort(ids, axis=1)
        ids = np.take_along_axis(ids, order, axis=1)
        logits = np.take_along_axis(logits, order, axis=1)
        logits[:, 1:][ids[:, 1:] == ids[:, :-1]] = -np.inf
        own = np.empty((len(ids), FIELDS))
        offsets = np.arange(len(ids) + 1, dtype=np.int64) * ids.shape[1]
        csr_log_z(offsets, logits.ravel(), self.scale, own)
        least = (own[:, TOP] - self.top) * self.scale + own[:, HIGH]
        return self._replace(value=np.maximum(self.value, least))

    def log_probs(self, logits: Float64) -> Float64:
        """[B, M] a little below the log-probabilities of ids with those logits, at most 0."""
        apart = self._apart(logits)
        off = ROUNDED * (np.abs(apart) + np.abs(self.value)[:, None])
        with np.errstate(invalid="ignore"):  # of infinities
            values = np.minimum(apart - self.value[:, None] - off, 0)
        return np.where(apart > -np.inf, values, -np.inf)

    def proven(self, logits: Float64) -> tuple[Float64, Bool]:
        """[B, M] the proven lower ends of log-probabilities, and whether each is close enough.

        That is to less than half of a float32's last place: rounded down, it is the correctly
        rounded log-probability or the float32 below it.
        """
        assert self.low is not None
        assert self.high is not None
        apart = self._apart(logits)
        possible = apart > -np.inf
        apart = np.where(possible, apart, 0.0)
        off = ROUNDED * (np.abs(apart) + np.abs(self.high)[:, None])
        low, high = apart - self.high[:, None] - off, apart - self.low[:, None] + off
        with np.errstate(over="ignore"):
            place = np.spacing(np.abs(np.minimum(high, 0)).astype(np.float32)).astype(np.float64)
        return np.where(possible, np.minimum(low, 0), -np.inf), np.asarray(
            ~possible | (high - low < place / 2)
        )

    def _apart(self, logits: Float64) -> Float64:
        top = np.reshape(self.top, (-1, 1))
        return np.asarray((logits - top) * self.scale)


def printed_log_probs(log_z: LogZ, logits: Float64, ids: Int32) -> tuple[Float32, Bool]:
    """float32 log-probabilities of ids [B, M], and [B] whether those of a row are all proven."""
    low, exact = np.empty_like(logits), np.zeros(len(ids), np.bool_)
    if log_z.low is not None:
        low, proven = log_z.proven(logits)
        exact = np.asarray(proven.all(axis=1))
    if not exact.all():
        estimated = log_z.raised(logits, ids).log_probs(logits)
        low = np.where(exact[:, None], low, estimated)
    return rounded_down(low), exact


def rounded_down(values: Float64) -> Float32:
    """The largest float32 that is not above each value."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    return np.where(nearest > values, np.nextafter(nearest, np.float32(-np.inf)), nearest)
