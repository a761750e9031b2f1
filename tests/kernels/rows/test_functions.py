import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.rows.functions import (
    DECODE,
    DOT,
    DOTS,
    STORED_TYPES,
    addresses,
    call_decode,
    call_dot,
    call_dots,
)
from logitsieve.kernels.simd.dots import dot64, dots_1x4, row_of
from logitsieve.kernels.simd.lanes import sixteen_floats
from logitsieve.kernels.simd.pointers import int64_pointer, pointer
from logitsieve.utils.stored import KINDS
from tests.stored import BLOCKS, HALVES, reference, stored_softmax
from tests.synthetic import make_hidden

KIND = pytest.mark.parametrize("kind", [*HALVES, *BLOCKS])


@kernel("(int64, uint8[:,::1], float32[:,::1], float32[:,::1], float64[::1], float64[:,::1])")
def sums_of(address, stored, floats, hidden_states, h64, sums):
    """sums [V, 10]: dot64, then float32 dots with four rows; each beside that of rows as floats."""
    functions, dim = int64_pointer(address), hidden_states.shape[1]
    few, rows = sixteen_floats(), (0, dim, 2 * dim, 3 * dim)
    for row in range(stored.shape[0]):
        start = row_of(pointer(stored), row, stored.shape[1])
        sums[row, 0] = call_dot(functions[DOT], start, pointer(h64), dim)
        sums[row, 1] = dot64(row_of(pointer(floats), row, dim), pointer(h64), dim)
    for row in range(0, stored.shape[0], 4):
        places = row * dim, (row + 3) * dim, (row + 1) * dim, (row + 2) * dim
        call_dots(
            functions[DOTS], pointer(stored), *places, pointer(hidden_states), *rows, 4, dim, few
        )
        for q in range(4):
            expected = dots_1x4(
                pointer(floats), *places, row_of(pointer(hidden_states), q, dim), dim
            )
            for i in range(4):
                sums[row + i, 2 + 2 * q] = few[4 * q + i]
                sums[row + i, 3 + 2 * q] = expected[i]


@KIND
def test_sums_are_those_of_float32_rows(kind: str) -> None:
    for dim in (256, 512) if kind in BLOCKS else (3, 16, 37, 250):
        matrix, hidden_states = stored_softmax(kind, 12, dim).matrix, make_hidden(4, dim)
        h64 = np.zeros(-(-dim // 16) * 16)
        h64[:dim] = hidden_states[0]
        sums = np.empty((12, 10))
        data, floats = matrix.data.view(np.uint8), reference(matrix)
        sums_of(addresses(kind).ctypes.data, data, floats, hidden_states, h64, sums)
        np.testing.assert_array_equal(sums[:, ::2], sums[:, 1::2])
        assert sums.any()


@kernel("(int64, uint8[::1], int64, float32[::1])")
def decode_some(address, stored, count, values):
    call_decode(int64_pointer(address)[DECODE], pointer(stored), count, pointer(values))


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 37])
def test_no_number_after_the_last_is_written(kind: str, count: int) -> None:
    matrix = stored_softmax(kind, 1, 64).matrix
    values = np.full(64, np.nan, np.float32)
    table = addresses(kind).ctypes.data
    decode_some(table, matrix.data.view(np.uint8).ravel(), count, values)
    np.testing.assert_array_equal(values[:count], reference(matrix)[0, :count])
    assert np.isnan(values[count:]).all()


def test_every_kind_is_read() -> None:
    assert {"F32", *STORED_TYPES} == KINDS.keys()
