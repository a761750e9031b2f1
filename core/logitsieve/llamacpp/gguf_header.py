"""Parse the header of a GGUF file: metadata and the place of each tensor (ggml's `gguf.md`).

If a model is split over several files, the first has the metadata and each has some tensors.
Arrays of numbers are views; arrays of strings, such as a vocabulary, are read on demand.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.environment import kind_of, reason_of

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}  # codes of `struct`
STRING, ARRAY = 8, 9
SIZE = struct.Struct("<Q")  # precedes a string's bytes
ALIGNMENT = 32  # of the tensors' data, by default
MOST_DIMENSIONS = 4
SPLIT = ("split.no", "split.count", "split.tensors.count")


class TensorSpan(NamedTuple):
    """A tensor's ggml type, shape in numpy's order, and place in a mapped file."""

    kind: int
    shape: tuple[int, ...]
    mapped: mmap.mmap
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
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorSpan]


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


def read_model(path: Path, field: str) -> GgufHeader:
    first = read_header(path, field)
    count, number = (first.metadata.get(f"split.{name}", 0) for name in ("count", "no"))
    if count <= 1:
        return first
    part = f"-{number + 1:05d}-of-{count:05d}.gguf"
    if not path.name.endswith(part):
        raise InvalidRequest(field, f"{path}: part {number + 1} of {count}", f"the name NAME{part}")
    begun = str(path).removesuffix(part)
    paths = [Path(f"{begun}-{n + 1:05d}-of-{count:05d}.gguf") for n in range(count)]
    if number:
        got, allowed = f"{path}: one of several files, {number + 1} of {count}", f"{paths[0]}"
        raise InvalidRequest(field, got, f"the first, {allowed}")
    tensors = dict(first.tensors)
    for place, other in enumerate(paths[1:], 1):
        if not other.is_file():
            allowed = f"all {count} files of the model, {other.name} too"
            raise InvalidRequest(field, f"{path}: one of several files", allowed)
        header = read_header(other, field)
        found = header.metadata.get("split.no"), header.metadata.get("split.count")
        if found != (place, count) or not tensors.keys().isdisjoint(header.tensors):
            got = f"{other}: another model's part ({found[0]}, {found[1]})"
            raise InvalidRequest(field, got, f"part {place + 1} of {path}")
        tensors |= header.tensors
    wanted = first.metadata.get("split.tensors.count", len(tensors))
    if len(tensors) != wanted:
        raise InvalidRequest(field, f"{path}: {len(tensors)} tensors in all files", f"{wanted}")
    return GgufHeader(first.metadata, tensors)


def read_header(path: Path, field: str) -> GgufHeader:
    try:
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                kind = kind_of(path)
                more = kind and f": it is {kind}"
                raise ValueError(f"no GGUF file: it does not begin with GGUF{more}")
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return _read(mapped)
    except (OSError, ValueError) as error:
        got = f"{path}: {reason_of(error)}"
        raise InvalidRequest(field, got, "a whole GGUF file of a model") from error


def _read(mapped: mmap.mmap) -> GgufHeader:
    cursor = Cursor(mapped, len(MAGIC))
    if (version := cursor.number("I")) not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS:
            raise ValueError("big-endian, for machines such as s390x; convert it to little-endian")
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
    for name in SPLIT:
        if not isinstance(metadata.get(name, 0), int):
            raise ValueError(f"{name} is {metadata[name]!r:.40}, not a whole number")
    begin = -(-cursor.offset // alignment) * alignment
    placed = {name: span._replace(offset=begin + span.offset) for name, span in tensors.items()}
    return GgufHeader(metadata, placed)


def _tensor(cursor: Cursor) -> tuple[str, TensorSpan]:
    name, dimensions = cursor.string().decode(errors="replace"), cursor.number("I")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"{name!r:.80} has {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    return name, TensorSpan(cursor.number("I"), shape, cursor.mapped, cursor.number("Q"))
