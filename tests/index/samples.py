"""Tiny indexes, and ways to spoil them. V = 7 words, D = 3."""

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.heads._base.head import Softmax
from logitsieve.index import FileEntry, HeadEntry, Manifest, write_index
from logitsieve.index.tensorfile import DTYPES, pieces
from logitsieve.index_builder.fit.sketch import RotatedRows, code, rounded
from tests.synthetic import Arrays, write_heads

ESCAPES = "\x1b]0;owned\x07" * 1000  # to be quoted shortly, and without effect
WORDS = ["the", "of", "and", "", "naïve", "日本", "a b"]


def tiny_softmax(shift: float = 0.0) -> Softmax:
    weight = (np.arange(21).reshape(7, 3) - 10) / 8 + shift
    return Softmax(weight.astype(np.float32), (np.arange(7) / 4).astype(np.float32))


def tiny_screen() -> Arrays:
    return {
        "centroids": np.array([[1, 0, 0], [0, 1, 0.5]], np.float32),
        "offsets": np.array([0, 2, 5], np.int32),
        "ids": np.array([6, 1, 0, 1, 3], np.int32),
    }


def write_sketch(out: Path) -> Path:
    """Seven words of twenty dimensions, and their sketch: sixteen in eight bits.

    Numbers are short, limits far above the least: every CPU computes the same.
    """
    weight = (((np.arange(140) * 37 % 41).reshape(7, 20) - 20) / 8).astype(np.float32)
    softmax = Softmax(weight, (np.arange(7) / 4).astype(np.float32))
    sketch = code(RotatedRows(rounded(np.eye(20)), weight, 0.0), 16)
    sketch |= {"limits": np.array([8.0, 512.0, 8.0, 32.0, 2.0**-20])}
    return write_heads(out, softmax, "sketch", parts={"sketch": sketch})


def arguments() -> dict[str, Any]:
    """What `write_index` takes to write the tiny index."""
    screen = HeadEntry("screen", {"probes": 1}, {"clusters": 2})
    return {
        "softmax": tiny_softmax(),
        "parts": {"screen": tiny_screen()},
        "heads": {"full": HeadEntry(), "screen": screen},
        "default_head": "screen",
        "vocabulary": WORDS,
        "config": {"target_precision": {"p1": 0.998}},
        "seeds": {"fit": 7},
    }


def write_tiny(out: Path, **changes: Any) -> Path:
    return write_index(out, **{**arguments(), **changes})


def read_manifest(index: Path) -> Manifest:
    return Manifest.from_json((index / "manifest.json").read_bytes())


def replace_file(file: Path, data: bytes) -> None:
    """A new file under the old name: arrays mapped from the old one stay what they are."""
    file.unlink(missing_ok=True)
    file.write_bytes(data)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def forge(index: Path, **changes: Any) -> None:
    """Rewrite the manifest with `changes`, and with the sizes and digests that files have now."""
    manifest = replace(read_manifest(index), **changes)
    parts = {name: _entry(index, entry) for name, entry in manifest.parts.items()}
    words = None if manifest.vocabulary is None else _entry(index, manifest.vocabulary)
    forged = replace(manifest, parts=parts, vocabulary=words)
    replace_file(index / "manifest.json", forged.file_bytes())


def _entry(index: Path, entry: FileEntry) -> FileEntry:
    data = (index / entry.file).read_bytes()
    return FileEntry(entry.file, len(data), hashlib.sha256(data).hexdigest())


def tensor_bytes(header: object, body: bytes = b"") -> bytes:
    """A file with this header (JSON text, or what becomes it), data from a multiple of 64 on."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + body


def spoil_tensor(index: Path, part: str, name: str, change: Callable[[np.ndarray], Any]) -> None:
    """Change the numbers of one tensor in place, and forge the manifest to match."""
    file = index / f"{part}.safetensors"
    data = bytearray(file.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + length])[name]
    start, stop = (8 + length + offset for offset in entry["data_offsets"])
    array = np.frombuffer(data[start:stop], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
    change(array)
    data[start:stop] = array.tobytes()
    replace_file(file, bytes(data))
    forge(index)


def rewrite(index: Path, part: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a part with other tensors, and forge the manifest to match."""
    metadata = {"softmax_sha256": read_manifest(index).softmax_sha256}
    replace_file(index / f"{part}.safetensors", b"".join(map(bytes, pieces(tensors, metadata))))
    forge(index)


def put(*path: str | int, to: Any) -> Callable[[Any], object]:
    """A change of nested dicts and lists."""

    def change(fields: Any) -> None:
        for key in path[:-1]:
            fields = fields[key]
        fields[path[-1]] = to

    return change
