import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.utils.wire_tensors import NUMPY_TYPES, DType, decode, encode
from tests.refusals import refused


@given(dtype=st.sampled_from(list(DType)), rows=st.integers(0, 5), cols=st.integers(1, 5))
def test_round_trip(dtype: DType, rows: int, cols: int) -> None:
    array = np.arange(rows * cols).reshape(rows, cols).astype(NUMPY_TYPES[dtype])
    code, *shape, data = encode(array)
    assert (code, *shape) == (dtype, rows, cols)
    found = decode(code, rows, cols, data, "field")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert not found.flags.writeable


def test_vectors_are_columns_and_rows_little_endian() -> None:
    assert encode(np.zeros(3, np.int32))[:3] == (DType.INT32, 3, 1)
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    code, rows, cols, data = encode(array)
    assert (code, rows, cols) == (DType.FLOAT32, 3, 2)
    np.testing.assert_array_equal(np.frombuffer(data, "<f4").reshape(3, 2), array)


@given(
    code=st.integers(0, 10), rows=st.integers(0, 2**32 - 1), cols=st.integers(0, 2**32 - 1),
    size=st.integers(0, 64),
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(code: int, rows: int, cols: int, size: int) -> None:
    known = code in list(DType)
    if known and rows * cols * NUMPY_TYPES[DType(code)].itemsize == size:
        assert decode(code, rows, cols, bytes(size), "hidden_states").size == rows * cols
        return
    with refused("hidden_states.data" if known else "hidden_states.dtype"):
        decode(code, rows, cols, bytes(size), "hidden_states")
