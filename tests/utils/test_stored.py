from itertools import product

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.floats import STORED
from logitsieve.utils.stored import KINDS, StoredMatrix
from tests.refusals import refused
from tests.stored import BLOCKS, random_blocks

EVERY_BLOCK = pytest.mark.parametrize("kind", BLOCKS)


def test_sizes_of_blocks_are_those_of_ggml_and_other_floats_have_no_kind() -> None:
    import gguf

    for code in BLOCKS:
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[code]]
        assert sizes == (KINDS[code].values, KINDS[code].bytes)
    with pytest.raises(InvalidRequest, match="float64"):
        StoredMatrix.of(np.zeros((2, 4)))


@EVERY_BLOCK
def test_a_matrix_of_blocks_has_the_shape_of_its_numbers(kind: str) -> None:
    matrix = random_blocks(kind, np.ones((5, 3)))
    assert matrix.shape == (5, 3 * KINDS[kind].values) == (matrix.vocab_size, matrix.dim)
    assert matrix.row_bytes == 3 * KINDS[kind].bytes
    assert (matrix.nbytes, len(matrix)) == (5 * matrix.row_bytes, 5)
    assert matrix[1:3].shape == (2, matrix.dim)
    assert np.shares_memory(matrix[1:3].data, matrix.data)
    ids = np.array([4, 0])
    np.testing.assert_array_equal(matrix[ids].data, matrix.data[ids])
    assert StoredMatrix.of(matrix) is matrix
    assert not np.shares_memory(matrix.copy().data, matrix.data)


@pytest.mark.parametrize("name", STORED)
def test_the_kind_of_floats_is_their_type(name: str) -> None:
    array = np.zeros((3, 7), STORED[name])
    matrix = StoredMatrix.of(array)
    assert KINDS[matrix.kind].dtype == array.dtype
    assert matrix.data is array
    assert (matrix.shape, matrix.row_bytes) == ((3, 7), 7 * array.itemsize)
    assert matrix.row_without_scale() is None


@pytest.mark.parametrize(
    ("kind", "array", "got"),
    [
        ("Q3_K", np.zeros((2, 110), np.uint8), "Q3_K"),
        ("Q8_0", np.zeros((2, 35), np.uint8), r"uint8 \[2, 35\]"),
        ("Q8_0", np.zeros((2, 0), np.uint8), r"uint8 \[2, 0\]"),
        ("Q8_0", np.zeros(34, np.uint8), r"uint8 \[34\]"),
        ("Q8_0", np.zeros((2, 34), np.int8), "int8"),
        ("Q8_0", np.zeros((34, 34), np.uint8).T[:, :34][::2], "C-contiguous"),
        ("F16", np.zeros((2, 4), np.float32), "float32"),
        ("F32", np.zeros((2, 4), np.float32)[:, ::2], "C-contiguous"),
    ],
)
def test_an_array_of_parts_of_rows(kind: str, array: np.ndarray, got: str) -> None:
    with refused("weight", got):
        StoredMatrix(kind, array)


@EVERY_BLOCK
def test_the_first_row_with_a_scale_that_is_not_finite_is_found(kind: str) -> None:
    for place, value in product(KINDS[kind].scales, (np.nan, np.inf, -np.inf)):
        matrix = random_blocks(kind, np.ones((6, 4)))
        assert matrix.row_without_scale() is None
        blocks, scale = matrix.data.reshape(6, 4, -1), np.array([value], np.float16).view(np.uint8)
        blocks[4, 1, place : place + 2] = blocks[5, 0, place : place + 2] = scale
        assert matrix.row_without_scale() == 4
