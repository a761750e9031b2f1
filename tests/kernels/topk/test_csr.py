"""log sum exp of CSR rows against numpy in float64."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.topk.csr import csr_log_sum_exp


def test_rows_of_any_length_and_scale() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal(n) * scale for n, scale in ((1, 1), (50, 100), (7, 1e4), (0, 1))]
    values = np.concatenate(rows).astype(np.float32)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    out = np.empty(4, np.float32)
    csr_log_sum_exp(offsets, values, out)
    expected = [np.logaddexp.reduce(row.astype(np.float32).astype(np.float64)) for row in rows]
    np.testing.assert_allclose(out, expected, rtol=2e-7)
    assert out[3] == -np.inf


def test_log_z_is_right_to_the_last_bits_of_float32() -> None:
    random = np.random.default_rng(1)
    for scale in (0.1, 1.0, 10.0, 50.0):
        values = (random.standard_normal((40, 1003)) * scale).astype(np.float32)
        offsets = np.arange(41, dtype=np.int64) * 1003
        out = np.empty(40, np.float32)
        csr_log_sum_exp(offsets, values.ravel(), out)
        expected = np.logaddexp.reduce(values.astype(np.float64), axis=1)
        np.testing.assert_allclose(out, expected, rtol=1e-7, atol=2e-7)


def test_an_infinite_value_decides_alone() -> None:
    """Also beside one of -inf, and where all are -inf."""
    for count in (2, 16, 40):
        values = np.zeros((3, count), np.float32)
        values[0, 0], values[1, -1] = np.inf, np.inf
        values[0, 1], values[2] = -np.inf, -np.inf
        out = np.empty(3, np.float32)
        csr_log_sum_exp(np.arange(4, dtype=np.int64) * count, values.ravel(), out)
        assert out.tolist() == [np.inf, np.inf, -np.inf]
