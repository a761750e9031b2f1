"""Inputs of ModelInfer, as Triton's own client makes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.synthetic import make_hidden

SEEDS = np.array([1, 2, 3], np.uint64)
SAMPLE = {"method": "sample"}
HIDDEN = np.asarray(make_hidden(3), np.float32)


def given(name: str, array: np.ndarray, datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def hidden_states(array: np.ndarray = HIDDEN) -> Any:
    return given("hidden_states", array, "FP16" if array.dtype == np.float16 else "FP32")


def whole(name: str, value: int) -> Any:
    return given(name, np.array([value], np.int32), "INT32")


@contextmanager
def raised(code: str, said: str = "") -> Iterator[None]:
    with pytest.raises(InferenceServerException) as caught:
        yield
    assert caught.value.status() == f"StatusCode.{code}"
    assert said in str(caught.value)
