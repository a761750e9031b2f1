"""Checks of the arrays of each part of an index by its `PartSpec`.

Each part has two: `check_structure` (names, dtypes, shapes, and every number that a kernel uses as
an address) runs at each open; `check_values` reads every number and runs when an index is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from logitsieve.api.errors import IndexUnreadable, InvalidKnob, InvalidRequest
from logitsieve.heads import HEADS
from logitsieve.heads._base.head import Head, checked_knobs
from logitsieve.heads._base.spec import (
    SOFTMAX,
    SOFTMAX_BLOCKS,
    Arrays,
    PartSpec,
    check_structure,
    check_values,
)
from logitsieve.index.manifest import HeadEntry
from logitsieve.utils.stored import StoredMatrix

Registry = Mapping[str, type[Head]]
Report = Callable[[int], None]  # called with the bytes done since the last call
ADDRESSES = ("ids", "offsets")  # what kernels use as addresses

PARTS: dict[str, PartSpec] = {
    part.name: part for part in (SOFTMAX, *(head.part for head in HEADS.values())) if part
}


def spec_of(part: str, arrays: Arrays) -> PartSpec:
    """The schema of a part of this version; `softmax` has two, for blocks and for floats."""
    weight = arrays.get("weight") if part == SOFTMAX.name else None
    return SOFTMAX_BLOCKS if weight is not None and weight.dtype == np.uint8 else PARTS[part]


def require_structure(file: Path, part: str, arrays: Arrays, vocab_size: int, dim: int) -> None:
    """IndexUnreadable unless a kernel can follow every offset and id of the arrays."""
    try:
        check_structure(spec_of(part, arrays), arrays, vocab_size, dim)
    except ValueError as error:
        raise IndexUnreadable(file, str(error)) from error


def require_values(file: Path, part: str, arrays: Arrays, report: Report) -> None:
    """IndexUnreadable names the first number out of its range."""
    try:
        check_values(spec_of(part, arrays), arrays, report)
    except ValueError as error:
        raise IndexUnreadable(file, str(error)) from error


def require_scales(file: Path, matrix: StoredMatrix) -> None:
    """IndexUnreadable names the first row of blocks with a scale that is NaN or infinite."""
    if (row := matrix.row_without_scale()) is not None:
        raise IndexUnreadable(file, f"weight has a scale that is not finite in row {row}")


def private(part: str, arrays: Arrays) -> Arrays:
    """`arrays`, addresses copied: once checked they stay, even if the file is written to."""
    addresses = [name for name, tensor in PARTS[part].tensors.items() if tensor.holds in ADDRESSES]
    copies = {name: arrays[name].copy() for name in addresses if name in arrays}
    for copy in copies.values():
        copy.flags.writeable = False  # as the mapped ones: kernels are compiled for one kind
    return {**arrays, **copies}


def matrix_changed() -> InvalidRequest:
    """The refusal of a matrix that something writes to while an index is made of it."""
    got = "numbers that changed while the index was built"
    return InvalidRequest("weight", got, "an array or file that nothing writes to meanwhile")


def check_heads(heads: Mapping[str, HeadEntry], registry: Registry) -> None:
    """ValueError unless the heads that `registry` knows have their part and possible knobs."""
    for name, entry in heads.items():
        if name not in registry:
            continue
        needed = registry[name].part
        if entry.part != (part := needed.name if needed else None):
            raise ValueError(f"head {name!r} names the part {entry.part!r}, needed: {part!r}")
        try:
            checked_knobs(registry[name].knob_table, {}, entry.knobs)
        except InvalidKnob as error:
            raise ValueError(f"head {name!r}: {error}") from error
