import ctypes
from typing import Any

import numpy as np
import pytest

from logitsieve.llamacpp.hook import COPY, OFF, OTHER, STOP, TOO_MANY, HiddenHook
from logitsieve.llamacpp.host import TensorLayout

LAYOUT = TensorLayout(columns=2, data=31, name=32)
CALL = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


def tensor(name: bytes, values: np.ndarray) -> np.ndarray:
    """The words of a ggml_tensor in memory: float32 [rows, columns]."""
    words = np.zeros(64, np.int64)
    words[0] = 0 if values.dtype == np.float32 else 1
    words[2:10] = [values.shape[1], len(values), 1, 1, values.itemsize, values.strides[0], 0, 0]
    words[31] = values.ctypes.data
    words[32:40] = np.frombuffer(name.ljust(64, b"\0"), np.int64)
    return words


def ask(hook: HiddenHook, words: np.ndarray, asking: bool) -> Any:
    return CALL(hook.address)(words.ctypes.data, asking, hook.argument)


@pytest.fixture
def values() -> np.ndarray:
    return np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(("mode", "goes_on"), [(COPY, True), (STOP, False)])
def test_it_copies_the_rows_of_one_name(mode: int, goes_on: bool, values: np.ndarray) -> None:
    hook = HiddenHook(LAYOUT, 8, 4)
    hook.begin(mode)
    wanted = tensor(b"result_norm", values)
    others = [tensor(name, values) for name in (b"result_norm-0", b"result_output", b"norm", b"")]
    assert not any(ask(hook, other, True) for other in others)
    for _ in range(2):  # as in two parts of a batch
        assert ask(hook, wanted, True)
        assert ask(hook, wanted, False) == goes_on
    np.testing.assert_array_equal(hook.rows(), np.concatenate([values, values]))
    assert (hook.fault, hook.graphs) == (0, 2)
    hook.begin(mode)
    assert (len(hook.rows()), hook.graphs) == (0, 0)


def test_it_is_off_at_first_and_rows_that_do_not_fit_are_a_fault(values: np.ndarray) -> None:
    hook = HiddenHook(LAYOUT, 8, 4)
    hook.begin(OFF)
    assert not ask(hook, tensor(b"result_norm", values), True)
    wide, half = np.zeros((3, 5), np.float32), np.zeros((3, 4), np.float16)
    for wrong, fault in ((wide, OTHER), (half, OTHER), (np.tile(values, (4, 1)), TOO_MANY)):
        hook = HiddenHook(LAYOUT, 8, 4)
        hook.begin(STOP)
        assert not ask(hook, tensor(b"result_norm", wrong), False)
        assert (hook.fault, len(hook.rows())) == (fault, 0)
