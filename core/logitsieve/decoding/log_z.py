"""log Z of rows in float64 with its proven bounds, and its rounding to float32.

Shape letters: B batch rows, M ids of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int32
from logitsieve.kernels.sampling.printing import print_log_probs, print_log_z, raise_log_z
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE


class PrintedLogZ(NamedTuple):
    """log Z in float32 [B]; bounds stay valid."""

    value: Float32 | None
    low: Float32 | None = None  # it is proven to lie between these
    high: Float32 | None = None
    error: Float32 | None = None  # the standard error of an estimate


class LogZ(NamedTuple):
    """log of the sum of all e^{scale x}, for each row."""

    fields: Float64  # [B, 4] TOP, VALUE, LOW, HIGH of kernels/sampling/log_z.py
    scale: float = 1.0
    bounded: bool = True  # LOW and HIGH are proven; else they are infinite
    error: Float64 | None = None  # [B] the standard error of an estimate

    @classmethod
    def estimate(cls, value: Float64, scale: float, error: Float64 | None = None) -> LogZ:
        """Make an estimate [B] without bounds."""
        fields = np.empty((len(value), FIELDS))
        fields[:, TOP], fields[:, VALUE] = 0.0, value
        return cls(fields, scale, False, error).unbounded()

    def unbounded(self) -> LogZ:
        """Withdraw the bounds."""
        self.fields[:, LOW], self.fields[:, HIGH] = -np.inf, np.inf
        return self._replace(bounded=False)

    @property
    def value(self) -> Float64:
        """[B] log Z, computed or estimated."""
        return np.asarray(self.scale * self.fields[:, TOP] + self.fields[:, VALUE])

    @property
    def spans(self) -> Float64:
        """[B] the width of the interval, nats."""
        return np.asarray(self.fields[:, HIGH] - self.fields[:, LOW])

    def printed(self) -> PrintedLogZ:
        """Round to float32, bounds outward."""
        printed = np.empty((3, len(self.fields)), np.float32)
        print_log_z(self.fields, self.scale, printed)
        low, high = printed[1:] if self.bounded else (None, None)
        error = None if self.error is None else self.error.astype(np.float32)
        return PrintedLogZ(printed[0], low, high, error)

    def raised(self, logits: Float64, ids: Int32) -> LogZ:
        """Raise log Z to at least that of the row's distinct `ids` [B, M] with these logits."""
        raise_log_z(logits, ids, self.fields, self.scale)
        return self

    def log_probs(self, logits: Float64, ids: Int32) -> tuple[Float32, Bool]:
        """Return float32 log-probabilities of ids [B, M], and [B] True for proven rows."""
        log_probs, exact = np.empty(ids.shape, np.float32), np.empty(len(ids), np.bool_)
        print_log_probs(logits, ids, self.fields, self.scale, log_probs, exact)
        return log_probs, exact
