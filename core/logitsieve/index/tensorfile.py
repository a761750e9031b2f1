"""Safetensors files with tensors at multiples of 64 bytes, written in pieces and read mapped.

Format: https://huggingface.co/docs/safetensors, restricted by docs/index-format.md.
"""

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.files import as_unreadable, regular
from logitsieve.utils.floats import ELEMENT_TYPES

ALIGNMENT = 64  # bytes of a cache line and of the widest vector register
MAX_HEADER = 1 << 20  # bytes
MAX_FOREIGN_HEADER = 100_000_000  # bytes; the format's limit
MAX_DIMENSIONS = 4
MAX_NAME = 64  # characters
MAX_WRITE = 1 << 24  # bytes
METADATA = "__metadata__"
FIELDS = {"dtype", "shape", "data_offsets"}
PADDING = "_pad_"  # gaps are tensors of this name, since the format allows no holes

DTYPES = {kind.safetensors: kind.numpy for kind in ELEMENT_TYPES if kind.name != "bool"}
CODES = {dtype: code for code, dtype in DTYPES.items() if code != "BF16"}


@dataclass(frozen=True)
class TensorFile:
    """A mapped file."""

    tensors: Mapping[str, np.ndarray]  # read-only views of the mapped pages
    codes: Mapping[str, str]  # the tensors' types as in the header
    metadata: Mapping[str, str]
    content: mmap.mmap  # the whole file
    status: os.stat_result


@dataclass(frozen=True)
class Span:
    """A tensor's place, in bytes after the header."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def array(self, mapped: mmap.mmap, begin: int) -> np.ndarray:
        """Return a view of the tensor in a file that has data from byte `begin` on."""
        count, dtype = math.prod(self.shape), DTYPES[self.code]
        if count == 0:  # np.frombuffer refuses it
            return np.empty(self.shape, dtype)
        return np.frombuffer(mapped, dtype, count, begin + self.start).reshape(self.shape)


def pieces(
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    codes: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Any]:
    """Yield the bytes of the file in buffers of at most MAX_WRITE bytes, without a copy.

    Tensors are C-contiguous and non-empty. `codes` names the types that numpy lacks: BF16.
    """
    header: dict[str, object] = {METADATA: dict(sorted(metadata.items()))}
    body: list[np.ndarray] = []
    position = 0

    def place(name: str, array: np.ndarray) -> None:
        nonlocal position
        stop = position + array.nbytes
        header[name] = {
            "dtype": codes.get(name, CODES[array.dtype]),
            "shape": list(array.shape),
            "data_offsets": [position, stop],
        }
        body.append(array)
        position = stop

    for number, (name, array) in enumerate(sorted(tensors.items())):
        if gap := -position % ALIGNMENT:
            place(f"{PADDING}{number}", np.zeros(gap, np.uint8))
        place(name, array)

    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for array in body:
        view = array.data.cast("B")
        yield from (view[start : start + MAX_WRITE] for start in range(0, len(view), MAX_WRITE))


def map_tensors(path: Path, foreign: bool = False) -> TensorFile:
    """Map a file and check its header (IndexUnreadable). `foreign` admits any safetensors file."""
    regular(path)
    with as_unreadable(path), path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        if (size := status.st_size) < 8:
            raise IndexUnreadable(path, f"{size} bytes, too short for a header")
        mapped = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)
    with as_unreadable(path):
        begin, spans, metadata = read_header(mapped, foreign)
    named = [span for span in spans if not span.name.startswith(PADDING)]
    tensors = {span.name: span.array(mapped, begin) for span in named if span.code in DTYPES}
    codes = {span.name: span.code for span in named}
    return TensorFile(tensors, codes, metadata, mapped, status)


def read_header(mapped: mmap.mmap, foreign: bool = False) -> tuple[int, list[Span], dict[str, str]]:
    """Return (first byte of the data, tensors by place, metadata); ValueError if malformed."""
    begin = 8 + _header_length(mapped, foreign)
    try:
        header = json.loads(mapped[8:begin], object_pairs_hook=_without_duplicates)
    except RecursionError as error:
        raise ValueError("header is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("header is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError("header is not a JSON object")
    metadata = header.pop(METADATA, {})
    if metadata is None and foreign:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{METADATA} does not map strings to strings")
    spans = [_parse_entry(name, entry, foreign) for name, entry in header.items()]
    spans.sort(key=lambda span: (span.start, span.stop))
    _check_layout(spans, begin, len(mapped))
    return begin, spans, metadata


def _header_length(mapped: mmap.mmap, foreign: bool) -> int:
    length, size = int.from_bytes(mapped[:8], "little"), len(mapped)
    most = MAX_FOREIGN_HEADER if foreign else MAX_HEADER
    if length > min(most, size - 8):
        raise ValueError(f"header of {length} bytes in a file of {size}, at most {most}")
    if (8 + length) % ALIGNMENT and not foreign:
        raise ValueError(f"data begins at byte {8 + length}, not at a multiple of {ALIGNMENT}")
    return length


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    header: dict[str, Any] = {}
    for key, value in pairs:
        if key in header:
            raise ValueError(f"key {key[:64]!r} occurs twice in the header")
        header[key] = value
    return header


def _parse_entry(name: str, entry: object, foreign: bool) -> Span:
    if len(name) > MAX_NAME and not foreign:
        raise ValueError(f"a tensor name has {len(name)} characters, at most {MAX_NAME}")
    keys = entry.keys() if isinstance(entry, dict) else set()
    if not isinstance(entry, dict) or not (keys >= FIELDS if foreign else keys == FIELDS):
        raise ValueError(f"tensor {name!r} needs exactly dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or not (code in DTYPES or foreign):
        raise ValueError(f"tensor {name!r} has dtype {code!r:.40}, allowed: {', '.join(DTYPES)}")
    ours = _are_counts(shape) and 1 <= len(shape) <= MAX_DIMENSIONS and 0 not in shape
    if not ours and not (foreign and _are_counts(shape)):
        raise ValueError(f"tensor {name!r} has no usable shape: {str(shape)[:80]}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has no usable data_offsets: {str(offsets)[:80]}")
    start, stop = offsets
    size = math.prod(shape) * DTYPES[code].itemsize if code in DTYPES else max(0, stop - start)
    if stop - start != size:
        raise ValueError(f"tensor {name!r} spans {stop - start} bytes, not what its shape takes")
    if start % ALIGNMENT and not (foreign or name.startswith(PADDING)):
        raise ValueError(f"tensor {name!r} does not begin at a multiple of {ALIGNMENT} bytes")
    return Span(name, code, tuple(shape), start, stop)


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_layout(spans: list[Span], begin: int, size: int) -> None:
    position = 0
    for span in spans:
        if span.start != position:
            kind = "overlaps the tensor before it" if span.start < position else "follows a hole"
            raise ValueError(f"tensor {span.name!r} {kind} (byte {span.start}, not {position})")
        position = span.stop
    if begin + position != size:
        raise ValueError(f"the header describes {begin + position} bytes, the file has {size}")
