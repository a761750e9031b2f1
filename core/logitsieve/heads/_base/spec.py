"""The schema of a part of an index: the types, shapes and allowed values of its tensors.

V and D are the softmax's sizes; any other letter is bound by the first tensor that names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from logitsieve.api.results import repeated_id
from logitsieve.utils.floats import STORED, finite

Arrays = Mapping[str, np.ndarray]
Sizes = dict[str, int]  # by letter

CHECKED_AT_ONCE = 1 << 18  # elements that stay in the cache


@dataclass(frozen=True)
class TensorSpec:
    """One array of a part.

    `offsets` rise from 0 to the size `below`; `ids` are less than it. Kernels use both as
    addresses, so every new head checks them, and that `factors` are finite and positive. Only
    `verify` checks that `reals` are finite.
    """

    dtype: str  # numpy's name, or "bfloat16"; alternatives are joined by " or "
    shape: tuple[str | int, ...]  # letters, "C+1", "V/16" (rounded up), or fixed sizes
    holds: Literal["reals", "codes", "ids", "offsets", "factors"] = "reals"
    below: str = ""
    optional: bool = False


@dataclass(frozen=True)
class PartSpec:
    """A head's arrays. `structure` and `values` raise ValueError for faults beyond sizes.

    `structure` runs for every new head. `values` runs in `verify`, and may read every number.
    """

    name: str
    tensors: Mapping[str, TensorSpec]
    structure: Callable[[Arrays], None] = lambda arrays: None
    values: Callable[[Arrays], None] = lambda arrays: None

    def held(self, arrays: Arrays) -> dict[str, TensorSpec]:
        """Return the tensors that `arrays` have; ValueError if a required one is missing."""
        for name, tensor in self.tensors.items():
            if name not in arrays and not tensor.optional:
                raise ValueError(f"holds no tensor {name!r}")
        return {name: tensor for name, tensor in self.tensors.items() if name in arrays}


SOFTMAX = PartSpec(
    "softmax",
    {
        "weight": TensorSpec("float32 or float16 or bfloat16", ("V", "D")),
        "bias": TensorSpec("float32", ("V",)),
    },
)
# A matrix in blocks has X bytes a row; utils/stored.py checks its scales.
SOFTMAX_BLOCKS = PartSpec(
    "softmax", {**SOFTMAX.tensors, "weight": TensorSpec("uint8", ("V", "X"), "codes")}
)


def check_structure(part: PartSpec, arrays: Arrays, vocab_size: int, dim: int) -> None:
    """ValueError unless the arrays fit together and kernels can follow every offset and id."""
    sizes = {"V": vocab_size, "D": dim}
    held = part.held(arrays)
    for name, tensor in held.items():
        _bind(name, tensor, arrays[name], sizes)
    for name, tensor in held.items():
        array, below = arrays[name], sizes.get(tensor.below, 0)
        if tensor.holds == "offsets":
            if array[0] != 0 or array[-1] != below or (array[1:] < array[:-1]).any():
                raise ValueError(f"{name} do not rise from 0 to {below}")
        elif tensor.holds == "ids":
            low, high = int(array.min()), int(array.max())
            if low < 0 or high >= below:
                raise ValueError(f"{name} reach {low} .. {high}, allowed: 0 .. {below - 1}")
        elif tensor.holds == "factors" and not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{name} are not all finite and above 0")
    part.structure(arrays)


def _bind(name: str, tensor: TensorSpec, array: np.ndarray, sizes: Sizes) -> None:
    if array.ndim == len(tensor.shape):
        for size, got in zip(tensor.shape, array.shape, strict=True):
            if isinstance(size, str) and "/" not in size:
                letter, _, more = size.partition("+")
                sizes.setdefault(letter, max(1, got - int(more or 0)))
    needed = [_size(size, sizes) for size in tensor.shape]
    dtypes = [STORED.get(name) or np.dtype(name) for name in tensor.dtype.split(" or ")]
    if array.dtype not in dtypes or list(array.shape) != needed:
        got = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"{name} is {got}, needed: {tensor.dtype} {needed}")


def _size(size: str | int, sizes: Sizes) -> int | str:
    if isinstance(size, int):
        return size
    letter, _, parts = size.partition("/")
    if parts:
        return -(-sizes[letter] // int(parts)) if letter in sizes else size
    letter, _, more = size.partition("+")
    return sizes[letter] + int(more or 0) if letter in sizes else size


def check_values(part: PartSpec, arrays: Arrays, report: Callable[[int], None]) -> None:
    for name, tensor in part.held(arrays).items():
        if tensor.holds == "reals":
            _check_finite(name, arrays[name], report)
        else:
            report(arrays[name].nbytes)
    part.values(arrays)


def _check_finite(name: str, array: np.ndarray, report: Callable[[int], None]) -> None:
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHECKED_AT_ONCE):
        good = finite(flat[start : start + CHECKED_AT_ONCE])
        if not good.all():
            row = (start + int(good.argmin())) // (flat.size // len(array))
            raise ValueError(f"{name} is not finite in row {row}")
        report(good.size * flat.itemsize)


def no_empty_lists(arrays: Arrays) -> None:
    if (np.diff(arrays["offsets"]) == 0).any():
        raise ValueError("offsets do not rise: a list would be empty")


def all_different(arrays: Arrays, ids: str = "ids") -> None:
    counts = np.bincount(arrays[ids])
    if counts.max() > 1:
        raise ValueError(f"{ids}: {int(counts.argmax())} is there twice")


def no_id_twice(arrays: Arrays) -> None:
    if repeated := repeated_id(arrays["offsets"], arrays["ids"]):
        raise ValueError(f"ids: list {repeated[0]} holds an id twice")
