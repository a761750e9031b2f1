"""The memory of each part of an index, as a formula of its sizes.

V and D are the softmax's sizes; heads/_base/spec.py gives the other letters their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logitsieve.heads._base.spec import TensorSpec, check_structure
from logitsieve.index.checks import spec_of
from logitsieve.index.contents import Contents


@dataclass(frozen=True, kw_only=True)
class TensorMemory:
    """One array: `formula` in bytes, like "4 C D", and what it comes to."""

    formula: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PartMemory:
    """The arrays of a part, and the sizes of the letters in their formulas."""

    sizes: Mapping[str, int]
    tensors: Mapping[str, TensorMemory]

    @property
    def bytes(self) -> int:
        """The bytes of all arrays together."""
        return sum(tensor.bytes for tensor in self.tensors.values())


def memory(contents: Contents) -> dict[str, PartMemory]:
    """The memory of every part that this version knows, by its name."""
    memories = {}
    for name, arrays in sorted(contents.parts.items()):
        part, manifest = spec_of(name, arrays), contents.manifest
        sizes = check_structure(part, arrays, manifest.vocab_size, manifest.dim)
        held = part.held(arrays).items()
        tensors = {key: _memory(spec, arrays[key].itemsize, arrays[key].size) for key, spec in held}
        memories[name] = PartMemory(sizes=sizes, tensors=tensors)
    return memories


def _memory(tensor: TensorSpec, itemsize: int, size: int) -> TensorMemory:
    return TensorMemory(formula=formula(tensor, itemsize), bytes=itemsize * size)


def formula(tensor: TensorSpec, itemsize: int) -> str:
    """Bytes of an element times the sides: "4 C D", "4 (C+1)", "1 ceil(V/16) 64"."""
    sides = [f"({side})" if "+" in str(side) else str(side) for side in tensor.shape]
    return " ".join([str(itemsize), *(f"ceil({side})" if "/" in side else side for side in sides)])
