from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from logitsieve.utils.floats import (
    BY_NAME,
    ELEMENT_TYPES,
    LARGEST,
    STORED,
    aligned,
    finite,
    narrowed,
    widened,
)

EVERY = np.arange(1 << 16, dtype=np.uint16)  # every pattern of 16 bits
PEERS: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HALVES = pytest.mark.parametrize("name", PEERS)


def stored(name: str) -> np.ndarray:
    """Every value of the type, as it is stored."""
    return EVERY.view(STORED[name])


@HALVES
def test_every_value_is_widened_exactly_and_known_to_be_finite(name: str) -> None:
    values = widened(stored(name))
    assert (values.dtype.name, values.ctypes.data % 64) == ("float32", 0)
    np.testing.assert_array_equal(values, EVERY.view(PEERS[name]).astype(np.float32))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.signbit(values), EVERY >= 1 << 15)
    matrix = stored(name)[: 6 * 8].reshape(6, 8)[::2, 1:]
    np.testing.assert_array_equal(widened(matrix), widened(matrix.copy()))
    assert widened(matrix).flags.c_contiguous
    np.testing.assert_array_equal(finite(stored(name)), np.isfinite(widened(stored(name))))


@HALVES
def test_widened_values_are_narrowed_to_themselves(name: str) -> None:
    numbers = stored(name)[finite(stored(name))]
    for wide in (widened(numbers), widened(numbers).astype(np.float64)):
        back = narrowed(wide, name)
        assert back.dtype == STORED[name]
        np.testing.assert_array_equal(back.view(np.uint16), numbers.view(np.uint16))


@HALVES
def test_halfway_goes_to_the_even_neighbour_and_anything_more_beyond_it(name: str) -> None:
    numbers = stored(name)[: (1 << 15) - 1]
    numbers = numbers[finite(numbers)]  # ascending from 0
    wide = widened(numbers).astype(np.float64)
    low, high, middle = numbers[:-1], numbers[1:], (wide[:-1] + wide[1:]) / 2
    even = np.where(low.view(np.uint16) % 2 == 0, low, high)
    for sign in (1, -1):
        around = [np.nextafter(middle, -1), middle, np.nextafter(middle, np.inf)]
        for values, expected in zip(around, (low, even, high), strict=True):
            found = widened(narrowed(sign * values, name))
            np.testing.assert_array_equal(found, sign * widened(expected))


@HALVES
@given(values=arrays.arrays(np.float32, 16, elements=st.floats(width=32, allow_nan=False)))
def test_float32_is_rounded_as_others_do(name: str, values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        expected = values.astype(PEERS[name]).astype(np.float32)
    np.testing.assert_array_equal(widened(narrowed(values, name)), expected)


@pytest.mark.parametrize("name", STORED)
def test_beyond_the_largest_is_infinite(name: str) -> None:
    largest = np.array([LARGEST[name], -LARGEST[name], 1.01 * LARGEST[name], 1e300])
    np.testing.assert_array_equal(finite(narrowed(largest, name)), [True, True, False, False])


@pytest.mark.parametrize("shape", [(1,), (7, 3), (2, 3, 5)])
def test_arrays_begin_where_cache_lines_do(shape: tuple[int, ...]) -> None:
    values = aligned(shape)
    assert (values.shape, values.dtype.name) == (shape, "float32")
    assert values.ctypes.data % 64 == 0
    assert values.flags.c_contiguous


def test_no_format_has_a_name_twice_and_numpy_has_each_type_but_bfloat16() -> None:
    for format in ("name", "safetensors", "kserve"):
        names = [name for kind in ELEMENT_TYPES if (name := getattr(kind, format))]
        assert len(set(names)) == len(names)
    for name, element in BY_NAME.items():
        assert element.numpy.name == ("uint16" if name == "bfloat16" else name)
        assert element.numpy.newbyteorder("<") == element.numpy
