"""Rows of every kind decoded: bit for bit what ggml's reference gives."""

import ctypes
from importlib.metadata import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.rows.functions import decoded
from logitsieve.utils.stored import KINDS, StoredMatrix
from tests.stored import BLOCKS, random_blocks, reference, stored_softmax

EVERY_BLOCK = pytest.mark.parametrize("kind", BLOCKS)
# float16: 0, the smallest, the largest of the subnormal, the smallest normal, 1, the largest.
EXTREME = np.array([0, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF], np.uint16).view(np.float16)


def assert_same_bits(matrix: StoredMatrix) -> None:
    values = decoded(matrix)
    assert (values.shape, values.ctypes.data % 64) == (matrix.shape, 0)
    np.testing.assert_array_equal(values.view(np.uint32), reference(matrix).view(np.uint32))


@EVERY_BLOCK
def test_blocks_of_extreme_scales(kind: str) -> None:
    scales = np.stack([np.roll(EXTREME, shift) for shift in range(len(EXTREME))])
    for seed in range(40):  # every code and every small scale, beside each scale
        assert_same_bits(random_blocks(kind, scales, seed))


@EVERY_BLOCK
@given(data=st.data())
def test_any_bytes_with_finite_scales(kind: str, data: st.DataObject) -> None:
    block, blocks = KINDS[kind], data.draw(st.integers(1, 3))
    row = st.binary(min_size=blocks * block.bytes, max_size=blocks * block.bytes)
    rows: list[Any] = data.draw(st.lists(row, min_size=1, max_size=3))
    stored = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, block.bytes).copy()
    for place in block.scales:
        stored[:, place + 1] &= 0xFB  # no exponent of all ones
    assert_same_bits(StoredMatrix(kind, stored.reshape(len(rows), -1)))


@EVERY_BLOCK
def test_llama_cpp_decodes_the_same(kind: str, llama_wheel: None) -> None:
    """Its compiler may fuse the product and the sum of a number, but nothing else."""
    from logitsieve.llamacpp.xllamacpp import WHEEL

    (module,) = (path for path in files(WHEEL) or () if path.suffix == ".so")
    name = kind.lower().replace("_k", "_K")
    decode = getattr(ctypes.CDLL(str(module.locate())), f"dequantize_row_{name}")
    matrix = stored_softmax(kind, 40, 512).matrix
    values = np.empty(matrix.shape, np.float32)
    decode(*(ctypes.c_void_p(each.ctypes.data) for each in (matrix.data, values)), values.size)
    if len(KINDS[kind].scales) == 1:
        np.testing.assert_array_equal(decoded(matrix), values)
    else:
        largest = np.abs(values).max()
        np.testing.assert_allclose(decoded(matrix), values, rtol=0, atol=2**-22 * largest)


@EVERY_BLOCK
def test_rows_are_decoded_one_by_one(kind: str) -> None:
    matrix = stored_softmax(kind, 9, 512).matrix
    values = reference(matrix)
    matrix.data.flags.writeable = False
    np.testing.assert_array_equal(decoded(matrix[2:5]), values[2:5])
    np.testing.assert_array_equal(decoded(matrix[np.array([8, 0, 8])]), values[[8, 0, 8]])


def test_float32_is_not_copied() -> None:
    weight = np.ones((2, 3), np.float32)
    assert decoded(StoredMatrix.of(weight)) is weight
