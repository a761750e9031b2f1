"""log sum exp of CSR rows against numpy."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.csr import csr_log_sum_exp


def test_rows_of_any_length_and_scale() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal(n) * scale for n, scale in ((1, 1), (50, 100), (7, 1e4), (0, 1))]
    values = np.concatenate(rows).astype(np.float32)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    out = np.empty(4, np.float32)
    csr_log_sum_exp(offsets, values, out)
    expected = [np.logaddexp.reduce(row.astype(np.float32).astype(np.float64)) for row in rows]
    np.testing.assert_array_equal(out, np.array(expected).astype(np.float32))
    assert out[3] == -np.inf
