import numpy as np
import pytest

from logitsieve.utils.hidden import as_hidden
from tests.refusals import refused


def test_rows_keep_their_bits_and_are_not_copied() -> None:
    hidden_states = np.ones((3, 4), np.float32)
    assert as_hidden(hidden_states) is hidden_states
    assert as_hidden(hidden_states, 4).base is None
    bits = np.array([[0x3F80, 0xC000, 0x0001, 0x7F7F]], np.uint16)
    expected = np.array([[1.0, -2.0, 9.1835e-41, 3.3895e38]], np.float32)
    np.testing.assert_allclose(as_hidden(bits), expected, rtol=1e-4)
    assert np.isinf(as_hidden(np.array([[1e300]]))).all()
    bits = np.array([0x3F80, 0xC000], np.uint16)
    np.testing.assert_array_equal(as_hidden([bits, bits]), [[1.0, -2.0]] * 2)
    np.testing.assert_array_equal(as_hidden([[1, 2], [3, 4]]), [[1.0, 2.0], [3.0, 4.0]])


def test_tensors_and_objects_that_are_no_rows_are_refused() -> None:
    torch = pytest.importorskip("torch")

    class Stubborn:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise TypeError("no")

    for hidden_states, reason in (
        (torch.empty(2, 3, device="meta"), "CPU tensor"),
        (torch.zeros(2, 3, dtype=torch.int64), "dtype"),
        (torch.ones(2, 3).to_sparse(), "sparse"),
        (torch.zeros(2, 3).to(torch.float8_e4m3fn), "float8_e4m3fn"),
        (torch.zeros(2, 3).to(torch.float8_e5m2), "float8_e5m2"),
        (Stubborn(), "hidden_states"),
    ):
        with refused("hidden_states", reason):
            as_hidden(hidden_states)


def test_masked_values_are_refused_and_a_mask_of_nothing_is_not() -> None:
    hidden_states = np.ma.array(np.ones((2, 3), np.float32), mask=False)
    plain = as_hidden(hidden_states)
    assert type(plain) is np.ndarray
    np.testing.assert_array_equal(plain, np.ones((2, 3)))
    hidden_states[1, 2] = np.ma.masked
    with refused("hidden_states", "hidden_states: got masked values"):
        as_hidden(hidden_states)
