"""The schema of parts: letters are bound by arrays, and addresses checked before kernels follow."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from logitsieve.heads._base.spec import (
    CHECKED_AT_ONCE,
    SOFTMAX,
    PartSpec,
    TensorSpec,
    check_structure,
    check_values,
)
from logitsieve.index.reader import PARTS
from tests.index.samples import tiny_screen, tiny_softmax
from tests.synthetic import Arrays

V, D = 7, 3


def softmax() -> Arrays:
    return {"weight": tiny_softmax().weight.copy(), "bias": tiny_softmax().bias.copy()}


SPECS = {
    "softmax": SOFTMAX,
    "screen": PARTS["screen"],
    "factors": PartSpec("factors", {"factors": TensorSpec("float32", ("N",), "factors")}),
    "blocks": PartSpec("blocks", {"blocks": TensorSpec("float32", ("V/16", 16))}),
}


def check(part: str, arrays: Arrays) -> int:
    """The bytes that were checked."""
    done: list[int] = []
    check_structure(SPECS[part], arrays, V, D)
    check_values(SPECS[part], arrays, done.append)
    return sum(done)


SAMPLES: dict[str, Callable[[], Arrays]] = {
    "softmax": softmax,
    "screen": tiny_screen,
    "factors": lambda: {"factors": np.full(2, 0.5, np.float32)},
    "blocks": lambda: {"blocks": np.zeros((1, 16), np.float32)},
}


@pytest.mark.parametrize("part", SAMPLES)
def test_a_sound_part_passes(part: str) -> None:
    arrays = SAMPLES[part]()
    assert check(part, arrays) == sum(array.nbytes for array in arrays.values())


def cell(name: str, *place: int, to: float) -> Callable[[Arrays], object]:
    return lambda arrays: arrays[name].__setitem__(place, to)


def array(name: str, to: Any) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.__setitem__(name, np.asarray(to))


INT32 = np.int32
SPOILED: dict[str, tuple[str, Callable[[Arrays], object], str]] = {
    "no bias": ("softmax", lambda arrays: arrays.pop("bias"), "no tensor 'bias'"),
    "float64": (
        "softmax",
        array("weight", np.zeros((V, D))),
        "needed: float32 or float16 or bfloat16 [7, 3]",
    ),
    "D + 1": ("softmax", array("weight", np.zeros((V, D + 1), np.float32)), "[7, 4]"),
    "V - 1 biases": ("softmax", array("bias", np.zeros(V - 1, np.float32)), "bias is float32 [6]"),
    "NaN in W": ("softmax", cell("weight", 5, 1, to=np.nan), "weight is not finite in row 5"),
    "-inf in W": ("softmax", cell("weight", 6, 2, to=-np.inf), "weight is not finite in row 6"),
    "-inf in b": ("softmax", cell("bias", 2, to=-np.inf), "bias is not finite in row 2"),
    "no centroids": ("screen", lambda arrays: arrays.pop("centroids"), "no tensor 'centroids'"),
    "centroids of D - 1": ("screen", array("centroids", np.ones((2, 2), np.float32)), "[2, 3]"),
    "a centroid too many": ("screen", array("centroids", np.ones((3, 3), np.float32)), "offsets"),
    "NaN centroid": ("screen", cell("centroids", 1, 1, to=np.nan), "centroids is not finite"),
    "int64 ids": ("screen", array("ids", np.zeros(5, np.int64)), "ids is int64"),
    "id of V": ("screen", cell("ids", 4, to=V), "ids reach 0 .. 7, allowed: 0 .. 6"),
    "id of -1": ("screen", cell("ids", 4, to=-1), "ids reach -1"),
    "an id too many": ("screen", array("ids", np.zeros(6, INT32)), "do not rise from 0 to 6"),
    "offsets from 1": ("screen", cell("offsets", 0, to=1), "offsets do not rise from 0 to 5"),
    "an empty list": ("screen", cell("offsets", 1, to=0), "a list would be empty"),
    "falling offsets": ("screen", cell("offsets", 1, to=6), "offsets do not rise from 0"),
    "offsets that wrap": (
        "screen",
        array("offsets", np.array([0, 2**31 - 1, -(2**31)], INT32)),
        "rise",
    ),
    "an id twice": ("screen", cell("ids", 4, to=0), "list 1 holds an id twice"),
    **{
        f"a factor of {factor}": ("factors", cell("factors", 1, to=factor), "finite and above 0")
        for factor in (0, -1, np.inf, np.nan)
    },
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_part_is_refused_by_name(name: str) -> None:
    part, spoil, reason = SPOILED[name]
    arrays = SAMPLES[part]()
    spoil(arrays)
    with pytest.raises(ValueError, match=re.escape(reason)):
        check(part, arrays)


@pytest.mark.parametrize(
    "place", [0, CHECKED_AT_ONCE - 1, CHECKED_AT_ONCE, 2 * CHECKED_AT_ONCE + 5]
)
def test_every_chunk_is_looked_at(place: int) -> None:
    bias = np.zeros(2 * CHECKED_AT_ONCE + 6, np.float32)
    bias[place] = np.nan
    weight = np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match=f"row {place}$"):
        check_values(SOFTMAX, {"weight": weight, "bias": bias}, lambda _: None)
