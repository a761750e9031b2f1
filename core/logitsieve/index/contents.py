"""An index directory as found on disk: its manifest and its mapped parts, structure checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logitsieve.api.errors import IndexUnreadable
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.index.checks import PARTS, private, require_structure
from logitsieve.index.files import read_small, regular, unreadable
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


@dataclass(frozen=True)
class Contents:
    """`parts` holds the arrays of every part this version knows, by part and name.

    They are mapped, but for the small ones that kernels use as addresses: those are copies.
    `mapped` holds the files that were mapped, by file name.
    """

    path: Path
    manifest: Manifest
    softmax: Softmax
    parts: Mapping[str, Arrays]
    mapped: Mapping[str, TensorFile]
    calibration: Mapping[str, Any] | None

    def file(self, entry: FileEntry) -> Path:
        """The path of a file of the manifest."""
        return self.path / entry.file


def read_contents(path: Path | str) -> Contents:
    """Map `path`; check names, sizes, headers and addresses. IndexUnreadable names what is wrong.

    Parts of heads that this version does not know are left to the digests.
    """
    folder = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a mounted link
    if not is_version(folder.name) or not is_name(folder.parent.name):
        held = sorted(int(path.name) for path in folder.glob("[1-9]*") if is_version(path.name))
        versions = f"; versions in this folder: {', '.join(map(str, held))}" if held else ""
        reason = "an index lies in <name>/<version>/, version 1, 2, ..."
        raise IndexUnreadable(folder, reason + versions)
    return read_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the checked manifest of a folder, and nothing else of it. IndexUnreadable."""
    file = folder / MANIFEST_FILE
    return Manifest.from_json(read_small(file, MAX_MANIFEST), file)


def read_folder(folder: Path) -> Contents:
    """Map a folder that need not have the name of an index yet: `read_contents` otherwise."""
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
    arrays = private(name, part.tensors)
    require_structure(file, name, arrays, manifest.vocab_size, manifest.dim)
    return arrays


def _check_matrix(file: Path, part: TensorFile, manifest: Manifest) -> None:
    """IndexUnreadable unless the weight is as the manifest says that it is stored."""
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


def check_digest(file: Path, entry: FileEntry, sha256: str) -> None:
    """IndexUnreadable unless `sha256`, that of the file, is the manifest's."""
    if sha256 != entry.sha256:
        raise IndexUnreadable(
            file, f"damaged: its sha256 is {sha256}, the manifest says {entry.sha256}"
        )


def read_vocabulary(path: Path, manifest: Manifest) -> tuple[str, ...] | None:
    """The words by id, one a line; None where the index at `path` has none."""
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
