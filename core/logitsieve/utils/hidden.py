"""Check and convert hidden states from callers; contiguous float32 arrays are not copied."""

import sys

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32
from logitsieve.utils.floats import widened

HIDDEN_FORMS = "[B, D] or [D] of float32, float16, float64, bfloat16 (or its uint16 view), B >= 1"
ACCEPTED = tuple(map(np.dtype, (np.float32, np.float16, np.float64, np.uint16)))
TENSORS = ("torch.float32", "torch.float16", "torch.float64", "torch.bfloat16")
MASKED = "masked values"


def as_hidden(hidden_states: ArrayLike, dim: int | None = None) -> Float32:
    """Convert HIDDEN_FORMS and CPU tensors to contiguous float32 [B, D]; or InvalidRequest."""
    return np.ascontiguousarray(_to_float32(as_rows(hidden_states, dim)))


def as_wire(hidden_states: ArrayLike) -> np.ndarray:
    array = as_rows(hidden_states)
    return array if array.dtype in (np.float16, np.uint16) else _to_float32(array)


def as_rows(hidden_states: ArrayLike, dim: int | None = None) -> np.ndarray:
    """Convert to [B, D] of the given type, with bfloat16 as uint16."""
    array = _to_numpy(hidden_states)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.size == 0:
        raise InvalidRequest(
            "hidden_states", f"shape {list(np.shape(hidden_states))}", HIDDEN_FORMS
        )
    if dim is not None and array.shape[1] != dim:
        raise InvalidRequest("hidden_states", f"D = {array.shape[1]}", f"D = {dim}, the index's")
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    if array.dtype not in ACCEPTED:
        raise InvalidRequest("hidden_states", f"dtype {array.dtype}", HIDDEN_FORMS)
    return array


def _to_numpy(hidden_states: ArrayLike) -> np.ndarray:
    if isinstance(hidden_states, np.ndarray):
        if np.ma.is_masked(hidden_states):
            raise InvalidRequest("hidden_states", MASKED, HIDDEN_FORMS)
        return np.asarray(hidden_states)  # drops the mask's class
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(hidden_states).__mro__):
        if hidden_states.device.type != "cpu":
            raise InvalidRequest(
                "hidden_states", f"a tensor on {hidden_states.device}", "a CPU tensor"
            )
        if (
            str(hidden_states.dtype) not in TENSORS
            or hidden_states.layout != sys.modules["torch"].strided
        ):
            raise InvalidRequest(
                "hidden_states",
                f"dtype {hidden_states.dtype}, {hidden_states.layout}",
                HIDDEN_FORMS,
            )
        tensor = hidden_states.detach()
        if str(tensor.dtype) == "torch.bfloat16":  # numpy lacks it
            int16 = sys.modules["torch"].int16
            return np.asarray(tensor.contiguous().view(int16).numpy()).view(np.uint16)
        return np.asarray(tensor.numpy())
    try:
        array = np.asarray(hidden_states)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            "hidden_states", f"a ragged {type(hidden_states).__name__}", HIDDEN_FORMS
        ) from error
    if array.dtype == np.int64 and isinstance(hidden_states, (list, tuple)):
        return array.astype(np.float32)
    return array


def _to_float32(array: np.ndarray) -> Float32:
    if array.dtype == np.float32:
        return array
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):  # overflow becomes inf, which kernels refuse
            return array.astype(np.float32)
    return widened(array)
