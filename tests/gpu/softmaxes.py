"""Matrices on the device that tests run on: a GPU, or the host under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.gpu.device import device_named
from logitsieve.gpu.matrix import Matrix, matrix_on
from logitsieve.heads import Softmax

TYPES = ("float32", "float16", "bfloat16")


def stored_as(weight: np.ndarray, dtype: str) -> np.ndarray:
    """`weight` rounded to that type, bfloat16 as its bits."""
    if dtype == "bfloat16":
        half = torch.from_numpy(weight).to(torch.bfloat16).view(torch.int16)
        return half.numpy().view(np.uint16)
    return weight.astype(dtype)


def widened(stored: np.ndarray) -> np.ndarray:
    """float32 of what is stored, exactly."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def on_gpu(softmax: Softmax, dtype: str = "float32") -> tuple[Softmax, Matrix]:
    """The softmax as it is once stored in that type, and the same on the device."""
    stored = stored_as(softmax.weight, dtype)
    matrix = matrix_on(device_named("cuda"), stored, softmax.bias)
    return Softmax(widened(stored), softmax.bias), matrix


def tensor(array: np.ndarray) -> torch.Tensor:
    """A copy on the device."""
    return torch.from_numpy(array.copy()).to(device_named("cuda"))


def sweep(*always: Any, more: Sequence[Any]) -> list[Any]:
    """Cases of a parametrized test; those in `more` are exhaustive."""
    cases = [case if isinstance(case, tuple) else (case,) for case in more]
    return [*always, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in cases)]
