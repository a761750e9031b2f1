"""log Z of rows, printed with what is proven of it."""

from __future__ import annotations

import numpy as np

from logitsieve.decoding.normalizers import LogZ
from logitsieve.kernels.topk.merge import HIGH, LOW

FIELDS = np.array([[0.0, 1.0, 0.5, 1.5], [0.0, 0.1, -0.25, 0.75], [0.0, 3.0, 2.0, 3.0]])


def test_bounds_are_printed_outward_if_they_are_proven() -> None:
    log_z = LogZ(FIELDS.copy(), 1.0)
    value, low, high, error = log_z.rounded()
    assert low is not None
    assert high is not None
    assert error is None
    assert (low <= FIELDS[:, LOW]).all()
    assert (high >= FIELDS[:, HIGH]).all()
    estimate = LogZ.estimate(log_z.value, 1.0, np.array([0.5, 0.25, 0.0])).rounded()
    np.testing.assert_array_equal(estimate.value, value)
    assert estimate.low is None
    assert estimate.high is None
    assert estimate.error is not None
    assert estimate.error.tolist() == [0.5, 0.25, 0.0]
