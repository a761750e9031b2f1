"""Parse the header of a GGUF file: metadata and the place of each tensor (ggml's `gguf.md`).

Arrays of numbers are views; arrays of strings, such as a vocabulary, are read on demand.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}  # codes of `struct`
STRING, ARRAY = 8, 9
SIZE = struct.Struct("<Q")  # of a string, before its bytes
ALIGNMENT = 32  # of the tensors' data, unless the metadata has another
MOST_DIMENSIONS = 4


class TensorSpan(NamedTuple):
    """A tensor's ggml type, shape (columns last, as in numpy) and place in the data."""

    kind: int
    shape: tuple[int, ...]
    offset: int


class Strings(NamedTuple):
    mapped: mmap.mmap
    offset: int
    length: int

    def read(self) -> list[str]:
        mapped, texts, begin = self.mapped, [], self.offset
        for end in string_ends(mapped, begin, self.length):
            texts.append(mapped[begin + SIZE.size : end].decode(errors="replace"))
            begin = end
        return texts


class GgufHeader(NamedTuple):
    mapped: mmap.mmap
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorSpan]
    data_offset: int


class Cursor:
    def __init__(self, mapped: mmap.mmap, offset: int) -> None:
        self.mapped, self.offset, self._end = mapped, offset, len(mapped)

    def skip(self, size: int) -> int:
        begin, self.offset = self.offset, self.offset + size
        if self.offset > self._end:
            raise truncated(self._end, self.offset)
        return begin

    def number(self, code: str) -> Any:
        begin = self.skip(struct.calcsize(code))
        return struct.unpack_from(f"<{code}", self.mapped, begin)[0]

    def string(self) -> bytes:
        size = self.number("Q")
        begin = self.skip(size)
        return self.mapped[begin : begin + size]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string().decode(errors="replace")
        if kind == ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        return self.number(_scalar(kind))

    def _array(self, kind: int, count: int) -> Any:
        begin = self.offset
        if kind == STRING:
            for end in string_ends(self.mapped, begin, count):
                self.offset = end
            return Strings(self.mapped, begin, count)
        code = _scalar(kind)
        self.skip(count * struct.calcsize(code))
        return np.frombuffer(self.mapped, np.dtype(f"<{code}"), count, begin)


def string_ends(mapped: mmap.mmap, offset: int, count: int) -> Iterator[int]:
    length = len(mapped)
    for _ in range(count):
        begin = offset + SIZE.size
        offset = begin if begin > length else begin + SIZE.unpack_from(mapped, offset)[0]
        if offset > length:
            raise truncated(length, offset)
        yield offset


def truncated(length: int, needed: int) -> ValueError:
    return ValueError(f"truncated: {length} bytes, {needed} or more are needed")


def _scalar(kind: int) -> str:
    if kind not in SCALARS:
        raise ValueError(f"metadata of the unknown type {kind}")
    return SCALARS[kind]


def read_header(path: Path, field: str) -> GgufHeader:
    try:
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise ValueError("no GGUF file: it does not begin with GGUF")
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return _read(mapped)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequest(field, f"{path}: {reason}", "a whole GGUF file of a model") from error


def _read(mapped: mmap.mmap) -> GgufHeader:
    cursor = Cursor(mapped, len(MAGIC))
    if (version := cursor.number("I")) not in VERSIONS:
        raise ValueError(f"version {version} of GGUF is none of {', '.join(map(str, VERSIONS))}")
    tensor_count, pairs = cursor.number("Q"), cursor.number("Q")
    metadata = {}
    for _ in range(pairs):
        key = cursor.string().decode(errors="replace")
        metadata[key] = cursor.value(cursor.number("I"))
    tensors = dict(_tensor(cursor) for _ in range(tensor_count))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r:.40}, not a positive whole number")
    return GgufHeader(mapped, metadata, tensors, -(-cursor.offset // alignment) * alignment)


def _tensor(cursor: Cursor) -> tuple[str, TensorSpan]:
    name, dimensions = cursor.string().decode(errors="replace"), cursor.number("I")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"{name!r:.80} has {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    return name, TensorSpan(cursor.number("I"), shape, cursor.number("Q"))
