"""Descriptors hold addresses, sizes and bits at the places that kernels read."""

import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import (
    BIAS,
    DIM,
    LARGEST_BIAS,
    LARGEST_NORM,
    ROWS,
    WEIGHT,
    fill_fields,
    matrix_descriptor,
    widen_hidden,
)


@kernel("(int64, float32[::1])")
def norm_of(address, hidden):
    scratch = np.empty(padded(hidden.size), np.float64)
    norm = widen_hidden(int64_pointer(address), pointer(hidden), pointer(scratch))
    keep_alive(scratch)
    return norm


def test_each_field_goes_to_its_place() -> None:
    array = np.zeros(3)
    descriptor = fill_fields(np.full(5, -1), {0: array, 2: 7, 3: 0.25, 4: True})
    assert descriptor[:3].tolist() == [array.ctypes.data, -1, 7]
    assert descriptor[3:4].view(np.float64) == 0.25
    assert descriptor[4] == 1


def test_a_matrix_is_described_by_its_arrays_and_its_largest_values() -> None:
    weight = np.array([[3, 4], [0, 1], [1, 1]], np.float32)
    bias = np.array([0.5, -8, 1], np.float32)
    descriptor = matrix_descriptor(weight, bias)
    assert descriptor[[WEIGHT, BIAS]].tolist() == [weight.ctypes.data, bias.ctypes.data]
    assert descriptor[[ROWS, DIM]].tolist() == [3, 2]
    largest = descriptor[[LARGEST_NORM, LARGEST_BIAS]].view(np.float64)
    np.testing.assert_allclose(largest, [5, 8], rtol=1e-11)
    assert largest[0] >= 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_row_whose_logits_might_overflow_has_no_norm(value: float) -> None:
    weight, bias = np.eye(3, dtype=np.float32), np.zeros(3, np.float32)
    descriptor = matrix_descriptor(weight, bias)
    address = descriptor.ctypes.data
    assert norm_of(address, np.array([3, 0, 4], np.float32)) == 5
    assert norm_of(address, np.array([3, value, 4], np.float32)) == -1
