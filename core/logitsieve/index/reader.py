"""Map an index directory and check its structure: manifest, names, dtypes, shapes, addresses.

Kernels rely on these; `verify.py` checks all other numbers.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import IndexUnreadable, InvalidKnob
from logitsieve.heads import HEADS
from logitsieve.heads._base.head import Softmax, checked_knobs
from logitsieve.heads._base.kernel_head import Head
from logitsieve.heads._base.spec import SOFTMAX, SOFTMAX_BLOCKS, Arrays, PartSpec, check_structure
from logitsieve.index.files import as_unreadable, read_small, regular, unreadable
from logitsieve.index.manifest import (
    CALIBRATION_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST,
    FileEntry,
    Manifest,
    is_name,
    is_version,
)
from logitsieve.index.tensorfile import TensorFile, map_tensors
from logitsieve.utils.stored import KINDS, StoredMatrix

Registry = Mapping[str, type[Head]]
Report = Callable[[int], None]  # gets the bytes (or rows) done since its last call
ADDRESSES = ("ids", "offsets")  # arrays of these are addresses in kernels

PARTS: dict[str, PartSpec] = {
    part.name: part for part in (SOFTMAX, *(head.part for head in HEADS.values())) if part
}


def spec_of(part: str, arrays: Arrays) -> PartSpec:
    """Return the schema of a part; a softmax in blocks has one of its own."""
    weight = arrays.get("weight") if part == SOFTMAX.name else None
    return SOFTMAX_BLOCKS if weight is not None and weight.dtype == np.uint8 else PARTS[part]


@dataclass(frozen=True)
class Contents:
    """The mapped files by name, and the arrays of every known part."""

    path: Path
    manifest: Manifest
    softmax: Softmax
    parts: Mapping[str, Arrays]
    mapped: Mapping[str, TensorFile]
    calibration: Mapping[str, Any] | None


def read_contents(path: Path | str) -> Contents:
    """Map `path` and check its structure; IndexUnreadable names the fault."""
    folder = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a mounted link
    if not is_version(folder.name) or not is_name(folder.parent.name):
        held = sorted(int(path.name) for path in folder.glob("[1-9]*") if is_version(path.name))
        versions = f"; versions in this folder: {', '.join(map(str, held))}" if held else ""
        reason = "an index lies in <name>/<version>/, version 1, 2, ..."
        raise IndexUnreadable(folder, reason + versions)
    return read_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read and check only the manifest; IndexUnreadable names the fault."""
    file = folder / MANIFEST_FILE
    return Manifest.from_json(read_small(file, MAX_MANIFEST), file)


def read_folder(folder: Path) -> Contents:
    """Map a folder of any name; see `read_contents`."""
    if not folder.is_dir():
        raise IndexUnreadable(folder, "no such directory")
    manifest = read_manifest(folder)
    for entry in manifest.files():
        if (size := regular(folder / entry.file).st_size) != entry.size:
            reason = f"{size} bytes, the manifest says {entry.size}"
            raise IndexUnreadable(folder / entry.file, reason)
    known = {name: entry.file for name, entry in manifest.parts.items() if name in PARTS}
    mapped = {file: map_tensors(folder / file) for file in known.values()}
    parts = {
        name: _checked_part(folder / file, name, mapped[file], manifest)
        for name, file in known.items()
    }
    calibration = _read_calibration(folder / CALIBRATION_FILE)
    matrix = StoredMatrix(manifest.dtype, parts["softmax"]["weight"])
    softmax = Softmax(matrix, parts["softmax"]["bias"])
    return Contents(folder, manifest, softmax, parts, mapped, calibration)


def _checked_part(file: Path, name: str, part: TensorFile, manifest: Manifest) -> Arrays:
    bound_to = part.metadata.get("softmax_sha256")
    if bound_to != manifest.softmax_sha256:
        raise IndexUnreadable(
            file, f"belongs to another matrix ({bound_to!r:.80}, not {manifest.softmax_sha256})"
        )
    if name == "softmax" and "weight" in part.tensors:
        _check_matrix(file, part, manifest)
    arrays = dict(part.tensors)
    for key, tensor in PARTS[name].tensors.items():
        if tensor.holds in ADDRESSES and key in arrays:
            arrays[key] = arrays[key].copy()  # later writes to the file have no effect
            arrays[key].flags.writeable = False  # kernels are compiled for read-only arrays
    with as_unreadable(file):
        check_structure(spec_of(name, arrays), arrays, manifest.vocab_size, manifest.dim)
    return arrays


def _check_matrix(file: Path, part: TensorFile, manifest: Manifest) -> None:
    kind, code, shape = KINDS[manifest.dtype], part.codes["weight"], part.tensors["weight"].shape
    if code != ("U8" if kind.blocks else kind.code):
        needed = f"needed: {manifest.dtype}, the manifest's dtype"
        raise IndexUnreadable(file, f"weight is {code}, {needed}")
    fitting = [manifest.vocab_size, manifest.dim // kind.values * kind.bytes]
    if kind.blocks and list(shape) != fitting:
        needed = f"needed: {fitting}, rows of {manifest.dim} numbers as {kind.code}"
        raise IndexUnreadable(file, f"weight is U8 {list(shape)}, {needed}")


def _read_calibration(file: Path) -> Mapping[str, Any] | None:
    if not file.exists():
        return None
    try:
        calibration = json.loads(read_small(file, MAX_MANIFEST))
    except (ValueError, RecursionError) as error:
        raise unreadable(file, f"not JSON: {error}") from error
    if not isinstance(calibration, dict):
        raise IndexUnreadable(file, "not a JSON object")
    return calibration


def check_heads(manifest: Manifest, registry: Registry) -> None:
    """Raise ValueError for an unknown default head, or an entry that does not fit its head."""
    if manifest.default_head not in registry:
        heads = ", ".join(registry)
        raise ValueError(f"default_head {manifest.default_head!r} is not among {heads}")
    for name, entry in manifest.heads.items():
        if name not in registry:
            continue
        needed = registry[name].part
        if entry.part != (part := needed.name if needed else None):
            raise ValueError(f"head {name!r} names the part {entry.part!r}, needed: {part!r}")
        try:
            checked_knobs(registry[name].knob_table, {}, entry.knobs)
        except InvalidKnob as error:
            raise ValueError(f"head {name!r}: {error}") from error


def check_digest(file: Path, entry: FileEntry, sha256: str) -> None:
    """Raise IndexUnreadable unless the file's `sha256` is the manifest's."""
    if sha256 != entry.sha256:
        raise IndexUnreadable(
            file, f"damaged: its sha256 is {sha256}, the manifest says {entry.sha256}"
        )


def read_vocabulary(path: Path, manifest: Manifest) -> tuple[str, ...] | None:
    """Read the words by id; None if the index at `path` has none."""
    entry = manifest.vocabulary
    if entry is None:
        return None
    file = path / entry.file
    data = read_small(file, entry.size)
    check_digest(file, entry, hashlib.sha256(data).hexdigest())
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise IndexUnreadable(file, f"not UTF-8 at byte {error.start}") from error
    words = text.split("\n")
    if words.pop() != "" or len(words) != manifest.vocab_size:
        raise IndexUnreadable(file, f"{len(words)} lines, needed: {manifest.vocab_size}")
    return tuple(words)
