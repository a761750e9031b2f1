"""The manifest lists the contents of an index; its digest identifies the index."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, get_type_hints

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.calibration import Rule, read
from logitsieve.index.files import as_unreadable
from logitsieve.utils.stored import KINDS

FORMAT_VERSION = 3
MANIFEST_FILE = "manifest.json"
VOCABULARY_FILE = "vocabulary.txt"
CALIBRATION_FILE = "calibration.json"
MAX_MANIFEST = 1 << 24  # bytes

SHARD_ALIGNED = 256  # rows: every shard begins at a multiple of it

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_name(text: object) -> bool:
    """Tell whether `text` can name a model, a head or a part."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Tell whether `text` is a positive integer without leading zeros."""
    return _VERSION.fullmatch(text) is not None


def canonical(value: object) -> bytes:
    """Encode JSON with sorted keys, no spaces, ASCII only, and Python's shortest floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _counts(bits: int) -> Rule:
    return Rule(f"1 .. 2^{bits} - 1", lambda value: type(value) is int and 0 < value < 1 << bits)


Count: TypeAlias = Annotated[int, _counts(31)]
Size: TypeAlias = Annotated[int, _counts(63)]
Name: TypeAlias = Annotated[str, Rule("[a-z0-9][a-z0-9._-]{0,63}", is_name)]
Sha256: TypeAlias = Annotated[
    str,
    Rule("64 hex digits", lambda value: isinstance(value, str) and bool(_SHA256.fullmatch(value))),
]
Dtype: TypeAlias = Annotated[
    str, Rule(", ".join(KINDS), lambda value: isinstance(value, str) and value in KINDS)
]
Number: TypeAlias = Annotated[
    float, Rule("a number with a decimal point", lambda value: type(value) is float)
]
Integer: TypeAlias = Annotated[int, Rule("an integer", lambda value: type(value) is int)]
FirstRow: TypeAlias = Annotated[
    int,
    Rule(
        f"0 or a multiple of {SHARD_ALIGNED}",
        lambda value: type(value) is int and value >= 0 and value % SHARD_ALIGNED == 0,
    ),
]


@dataclass(frozen=True)
class FileEntry:
    """A file next to the manifest; its size is in bytes, its sha256 in hex."""

    file: Name
    size: Size
    sha256: Sha256


@dataclass(frozen=True)
class HeadEntry:
    """A head's part, operating point and build options."""

    part: Name | None = None
    knobs: Mapping[str, Number] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardOf:
    """The full softmax of a shard, which holds its rows from `first` on."""

    first: FirstRow
    vocab_size: Count
    softmax_sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that an index's answers depend on; equal inputs give equal bytes."""

    vocab_size: Count  # V
    dim: Count  # D
    softmax_sha256: Sha256  # see heads/_base/head.py
    parts: Mapping[str, FileEntry]
    heads: Mapping[str, HeadEntry]
    default_head: Name
    vocabulary: FileEntry | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, Integer] = field(default_factory=dict)
    format_version: Count = FORMAT_VERSION
    dtype: Dtype = "F32"  # of the stored matrix
    shard: ShardOf | None = None

    def to_json(self) -> bytes:
        """Return the JSON that is hashed to the digest."""
        return canonical(self._fields())

    @property
    def digest(self) -> str:
        """The digest (hex); indexes with equal digests give equal answers."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def file_bytes(self) -> bytes:
        """Return the bytes of manifest.json: `to_json` with the digest as a field."""
        return canonical({**self._fields(), "digest": self.digest}) + b"\n"

    def files(self) -> list[FileEntry]:
        """List the files that the digest covers: parts by name, then the vocabulary."""
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
    def from_json(cls, data: bytes, file: Path = Path(MANIFEST_FILE)) -> Self:
        """Parse the output of `file_bytes`; IndexUnreadable names `file` and the fault."""
        try:
            with as_unreadable(file):
                manifest = cls._parse(data)
        except RecursionError as error:
            raise IndexUnreadable(file, "nested too deeply") from error
        if manifest.file_bytes() != data:
            raise IndexUnreadable(file, "not in canonical form")
        return manifest

    @classmethod
    def _parse(cls, data: bytes) -> Self:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        if type(version := fields.get("format_version")) is not int or version != FORMAT_VERSION:
            raise ValueError(f"format_version {version!r:.40} is not {FORMAT_VERSION}")
        digest = fields.pop("digest", None)
        if digest != hashlib.sha256(canonical(fields)).hexdigest():
            raise ValueError("the contents do not match the digest they name")
        kinds = get_type_hints(cls, include_extras=True)
        if wrong := sorted((fields.keys() ^ kinds.keys()) - {"shard"}):
            raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
        manifest = cls(**{name: read(kinds[name], name, value) for name, value in fields.items()})
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise ValueError unless names, heads, parts and files fit together."""
        if self.dim % (block := KINDS[self.dtype].values):
            raise ValueError(f"dim: got {self.dim}, {self.dtype} needs a multiple of {block}")
        for kind, names in (("part", self.parts), ("head", self.heads)):
            if wrong := [name for name in names if not is_name(name)]:
                raise ValueError(f"{wrong[0]!r:.80} cannot name a {kind}")
        files = [entry.file for entry in self.files()]
        if len({*files, MANIFEST_FILE, CALIBRATION_FILE}) != len(files) + 2:
            raise ValueError("two parts share a file")
        if "softmax" not in self.parts or "full" not in self.heads:
            raise ValueError("every index holds the part 'softmax' and the head 'full'")
        if self.default_head not in self.heads:
            raise ValueError(f"default_head {self.default_head!r} is not among the heads")
        for name, head in self.heads.items():
            if head.part is not None and head.part not in self.parts:
                raise ValueError(f"head {name!r} names the part {head.part!r}, which is missing")
        if self.shard and self.shard.first + self.vocab_size > self.shard.vocab_size:
            raise ValueError(f"shard: it ends beyond {self.shard.vocab_size} rows")
