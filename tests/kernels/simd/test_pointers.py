"""Pointers: places, types and addresses of what lies in an array."""

import numpy as np

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.pointers import (
    as_float32,
    float32_pointer,
    float64_of_bits,
    keep_alive,
    pointer,
    shift,
)


@kernel("(float64[::1], int64)")
def element(values, place):
    return shift(pointer(values), place)[0]


@kernel("(float64[::1], int64)")
def as_single(values, place):
    return as_float32(pointer(values))[place]


@kernel("(int64, int64)")
def at_address(address, place):
    return float32_pointer(address)[place]


@kernel("(int64,)")
def of_bits(bits):
    return float64_of_bits(bits)


@kernel("(float64,)")
def written_and_read(value):
    scratch = np.zeros(3)
    shift(pointer(scratch), 2)[0] = value
    total = shift(pointer(scratch), 1)[1]
    keep_alive(scratch)
    return total


def test_a_pointer_is_moved_by_elements_and_cast_in_place() -> None:
    values = np.array([1.5, -2.0, 3.25])
    assert [element(values, place) for place in range(3)] == values.tolist()
    singles = values.view(np.float32)
    assert [as_single(values, place) for place in range(6)] == singles.tolist()
    assert written_and_read(7.5) == 7.5


def test_addresses_and_bits_become_numbers() -> None:
    values = np.array([0.5, 8.0], np.float32)
    assert at_address(values.ctypes.data, 1) == 8.0
    assert of_bits(int(np.float64(-1e300).view(np.int64))) == -1e300
