"""The manifest: what an index holds, as canonical JSON, and the digest that names it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.files import as_unreadable
from logitsieve.utils.stored import KINDS

FORMAT_VERSION = 1
READABLE = (1,)  # this format and the one before it, once it has one
MANIFEST_FILE = "manifest.json"
VOCABULARY_FILE = "vocabulary.txt"
CALIBRATION_FILE = "calibration.json"
MAX_MANIFEST = 1 << 24  # bytes

SHARD_ALIGNED = 256  # rows: the first row of a shard is a multiple of it

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_name(text: object) -> bool:
    """True if `text` may name a model, a head or a part."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """True if `text` is a positive integer in its only spelling."""
    return _VERSION.fullmatch(text) is not None


def canonical(value: object) -> bytes:
    """One JSON text per value: sorted keys, no spaces, ASCII. ValueError or TypeError if not JSON.

    Floats are written as Python's shortest text that reads back equal.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class FileEntry:
    """A file beside the manifest: its size in bytes and its sha256 (hex)."""

    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class HeadEntry:
    """A head: the part that holds its arrays, its operating point, what it was built with."""

    part: str | None = None
    knobs: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardOf:
    """The softmax that an index has some rows of: `first` and the rows after it."""

    first: int
    vocab_size: int  # V of the whole softmax
    softmax_sha256: str  # of the whole softmax


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that decides what an index answers; equal inputs give equal bytes."""

    vocab_size: int  # V
    dim: int  # D
    softmax_sha256: str  # of the matrix and its bias, see softmax_sha256 in checks.py
    parts: Mapping[str, FileEntry]
    heads: Mapping[str, HeadEntry]
    default_head: str
    vocabulary: FileEntry | None = None  # its sha256 is the vocabulary's id
    config: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    dtype: str = "F32"  # of the matrix as stored: one of KINDS in utils/stored.py
    shard: ShardOf | None = None  # the manifest of an index that is no shard lacks this key

    def to_json(self) -> bytes:
        """The canonical JSON whose sha256 is the digest."""
        return canonical(self._fields())

    @property
    def digest(self) -> str:
        """The index's identity (hex): equal digests answer equally."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def file_bytes(self) -> bytes:
        """The bytes of manifest.json: the canonical JSON with the digest among its fields."""
        return canonical({**self._fields(), "digest": self.digest}) + b"\n"

    def files(self) -> list[FileEntry]:
        """Every file that the digest covers, by part name; the vocabulary comes last."""
        files = [entry for _, entry in sorted(self.parts.items())]
        return files if self.vocabulary is None else [*files, self.vocabulary]

    def _fields(self) -> dict[str, Any]:
        fields = asdict(self)
        for head in fields["heads"].values():
            head["knobs"] = {knob: float(value) for knob, value in head["knobs"].items()}
        if self.shard is None:
            del fields["shard"]
        return fields

    @classmethod
    def from_json(cls, data: bytes, file: Path = Path(MANIFEST_FILE)) -> Manifest:
        """Read what `file_bytes` wrote; IndexUnreadable names `file` and any deviation."""
        try:
            with as_unreadable(file):
                manifest = cls._parse(data)
        except RecursionError as error:
            raise IndexUnreadable(file, "nested too deeply") from error
        if manifest.file_bytes() != data:
            raise IndexUnreadable(file, "not in canonical form")
        return manifest

    @classmethod
    def _parse(cls, data: bytes) -> Manifest:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        if type(version := fields.get("format_version")) is not int or version not in READABLE:
            raise ValueError(f"format_version {version!r:.40} is not one of {list(READABLE)}")
        digest = fields.pop("digest", None)
        if digest != hashlib.sha256(canonical(fields)).hexdigest():
            raise ValueError("the contents do not match the digest they name")
        if wrong := sorted((fields.keys() ^ _FIELDS.keys()) - {"shard"}):
            raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
        manifest = cls(**{name: _FIELDS[name](name, value) for name, value in fields.items()})
        manifest.check()
        return manifest

    def check(self) -> None:
        """ValueError unless names, heads, parts and files fit together."""
        if self.dim % (block := KINDS[self.dtype].values):
            raise ValueError(f"dim: got {self.dim}, {self.dtype} needs a multiple of {block}")
        for kind, names in (("part", self.parts), ("head", self.heads)):
            if wrong := [name for name in names if not is_name(name)]:
                raise ValueError(f"{wrong[0]!r:.80} cannot name a {kind}")
        files = [entry.file for entry in self.files()]
        if len({*files, MANIFEST_FILE, CALIBRATION_FILE}) != len(files) + 2:
            raise ValueError("two parts share a file")
        if "softmax" not in self.parts or "exact" not in self.heads:
            raise ValueError("every index holds the part 'softmax' and the head 'exact'")
        if self.default_head not in self.heads:
            raise ValueError(f"default_head {self.default_head!r} is not among the heads")
        for name, head in self.heads.items():
            if head.part is not None and head.part not in self.parts:
                raise ValueError(f"head {name!r} names the part {head.part!r}, which is missing")
        if self.shard and self.shard.first + self.vocab_size > self.shard.vocab_size:
            raise ValueError(f"shard: it ends beyond {self.shard.vocab_size} rows")


def _count(name: str, value: object, bits: int = 31) -> int:
    if type(value) is not int or not 0 < value < 1 << bits:
        raise ValueError(f"{name}: got {str(value)[:40]}, allowed: 1 .. 2^{bits} - 1")
    return value


def _dtype(name: str, value: object) -> str:
    if not isinstance(value, str) or value not in KINDS:
        raise ValueError(f"{name}: got {str(value)[:40]!r}, allowed: {', '.join(KINDS)}")
    return value


def _text(name: str, value: object) -> str:
    if not is_name(value):
        raise ValueError(f"{name}: got {str(value)[:80]!r}, allowed: [a-z0-9][a-z0-9._-]{{0,63}}")
    return str(value)


def _sha256(name: str, value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{name}: got {str(value)[:80]!r}, allowed: 64 hex digits")
    return value


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: not a JSON object")
    return value


def _shaped(name: str, value: object, keys: set[str]) -> dict[str, Any]:
    fields = _object(name, value)
    if set(fields) != keys:
        raise ValueError(f"{name}: needs exactly {', '.join(sorted(keys))}")
    return fields


def _file(name: str, value: object) -> FileEntry:
    fields = _shaped(name, value, {"file", "size", "sha256"})
    size = _count(f"{name}.size", fields["size"], bits=63)
    file, sha256 = _text(f"{name}.file", fields["file"]), fields["sha256"]
    return FileEntry(file, size, _sha256(f"{name}.sha256", sha256))


def _files(name: str, value: object) -> dict[str, FileEntry]:
    return {part: _file(f"{name}.{part}", entry) for part, entry in _object(name, value).items()}


def _heads(name: str, value: object) -> dict[str, HeadEntry]:
    heads = {}
    for head, entry in _object(name, value).items():
        fields = _shaped(f"{name}.{head}", entry, {"part", "knobs", "config"})
        part, knobs = fields["part"], _object(f"{name}.{head}.knobs", fields["knobs"])
        if wrong := [knob for knob, number in knobs.items() if type(number) is not float]:
            raise ValueError(f"{name}.{head}.knobs.{wrong[0]}: not a number with a decimal point")
        heads[head] = HeadEntry(
            None if part is None else _text(f"{name}.{head}.part", part),
            knobs,
            _object(f"{name}.{head}.config", fields["config"]),
        )
    return heads


def _seeds(name: str, value: object) -> dict[str, int]:
    seeds = _object(name, value)
    if wrong := [seed for seed, number in seeds.items() if type(number) is not int]:
        raise ValueError(f"{name}.{wrong[0]}: not an integer")
    return seeds


def _shard(name: str, value: object) -> ShardOf:
    fields = _shaped(name, value, {each.name for each in dataclass_fields(ShardOf)})
    first = fields["first"]
    if type(first) is not int or first < 0 or first % SHARD_ALIGNED:
        allowed = f"0 or a multiple of {SHARD_ALIGNED}"
        raise ValueError(f"{name}.first: got {str(first)[:40]}, allowed: {allowed}")
    _count(f"{name}.vocab_size", fields["vocab_size"])
    _sha256(f"{name}.softmax_sha256", fields["softmax_sha256"])
    return ShardOf(**fields)


_FIELDS: dict[str, Callable[[str, object], Any]] = {
    "format_version": _count,
    "vocab_size": _count,
    "dim": _count,
    "dtype": _dtype,
    "softmax_sha256": _sha256,
    "parts": _files,
    "vocabulary": lambda name, value: None if value is None else _file(name, value),
    "heads": _heads,
    "default_head": _text,
    "config": _object,
    "seeds": _seeds,
    "shard": _shard,
}
