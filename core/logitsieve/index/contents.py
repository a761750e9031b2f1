"""An index directory as found on disk: its manifest and its mapped parts, structure checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.heads.base import Softmax
from logitsieve.index.checks import CHECKS, private
from logitsieve.index.files import read_small, regular
from logitsieve.index.manifest import (
    CALIBRATION_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST,
    FileEntry,
    Manifest,
    is_name,
    is_version,
)
from logitsieve.index.tensorfile import map_tensors
from logitsieve.types.errors import IndexUnreadable


@dataclass(frozen=True)
class Contents:
    """`parts` holds the arrays of every part this version knows, by part and name.

    They are mapped, but for the small ones that kernels use as addresses: those are copies.
    """

    path: Path
    manifest: Manifest
    softmax: Softmax
    parts: Mapping[str, Mapping[str, np.ndarray]]
    calibration: Mapping[str, Any] | None

    def file(self, entry: FileEntry) -> Path:
        """Where a file of the manifest lies."""
        return self.path / entry.file


def read_contents(path: Path | str) -> Contents:
    """Map `path`; check names, sizes, headers and addresses. IndexUnreadable names what is wrong.

    Parts of heads that this version does not know are left to the digests.
    """
    folder = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a mounted link
    if not is_version(folder.name) or not is_name(folder.parent.name):
        raise IndexUnreadable(folder, "an index lies in <name>/<version>/, version 1, 2, ...")
    if not folder.is_dir():
        raise IndexUnreadable(folder, "no such directory")
    file = folder / MANIFEST_FILE
    manifest = Manifest.from_json(read_small(file, MAX_MANIFEST), file)
    for entry in manifest.files():
        _check_size(folder / entry.file, entry.size)
    parts = {
        name: _read_part(folder / entry.file, name, manifest)
        for name, entry in manifest.parts.items()
        if name in CHECKS
    }
    softmax = Softmax(parts["softmax"]["weight"], parts["softmax"]["bias"])
    calibration = _read_calibration(folder / CALIBRATION_FILE)
    return Contents(folder, manifest, softmax, parts, calibration)


def _check_size(file: Path, size: int) -> None:
    found = regular(file).st_size
    if found != size:
        raise IndexUnreadable(file, f"{found} bytes, the manifest says {size}")


def _read_part(file: Path, name: str, manifest: Manifest) -> Mapping[str, np.ndarray]:
    part = map_tensors(file)
    bound_to = part.metadata.get("softmax_sha256")
    if bound_to != manifest.softmax_sha256:
        raise IndexUnreadable(
            file, f"belongs to another matrix ({bound_to}, not {manifest.softmax_sha256})"
        )
    check = CHECKS[name]
    arrays = private(part.tensors, check.addresses)
    check.structure(file, arrays, manifest.vocab_size, manifest.dim)
    return arrays


def _read_calibration(file: Path) -> Mapping[str, Any] | None:
    if not file.exists():
        return None
    try:
        calibration = json.loads(read_small(file, MAX_MANIFEST))
    except (ValueError, RecursionError) as error:
        raise IndexUnreadable(file, f"not JSON: {str(error)[:200]}") from error
    if not isinstance(calibration, dict):
        raise IndexUnreadable(file, "not a JSON object")
    return calibration


def read_vocabulary(path: Path, manifest: Manifest) -> tuple[str, ...] | None:
    """The words by id, one a line; None where the index at `path` has none."""
    entry = manifest.vocabulary
    if entry is None:
        return None
    file = path / entry.file
    try:
        text = read_small(file, entry.size).decode()
    except UnicodeDecodeError as error:
        raise IndexUnreadable(file, f"not UTF-8 at byte {error.start}") from error
    words = text.split("\n")
    if words.pop() != "" or len(words) != manifest.vocab_size:
        raise IndexUnreadable(file, f"{len(words)} lines, needed: {manifest.vocab_size}")
    return tuple(words)
