"""Exact logits and log Z of CSR rows: bit for bit the definition, and against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.kernels.topk.csr import csr_log_sum_exp
from tests.oracle import logits64
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("dim", [1, 15, 16, 40])
def test_logits_are_the_oracles(dim: int) -> None:
    softmax, hidden = make_softmax(50, dim), make_hidden(3, dim)
    offsets, ids = np.array([0, 50, 50, 53]), np.r_[np.arange(50), 7, 49, 7].astype(np.int32)
    expected = logits64(softmax.weight, softmax.bias, hidden)
    expected = np.concatenate([expected[0], expected[2, [7, 49, 7]]])
    np.testing.assert_array_equal(softmax.logits64(hidden, offsets, ids), expected)
    found = softmax.logits(hidden, offsets, ids)
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert found.dtype == np.float32


def test_a_row_without_ids_is_looked_at_too() -> None:
    softmax, hidden = make_softmax(5, 4), make_hidden(3, 4)
    hidden[1, 3] = np.nan
    with pytest.raises(InvalidRequest) as refused:
        softmax.logits64(hidden, np.zeros(4, np.int64), np.empty(0, np.int32))
    assert refused.value.field == "hidden[1]"


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
