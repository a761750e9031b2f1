"""An index directory as found on disk: its manifest and its mapped parts, structure checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logitsieve.api.errors import IndexUnreadable
from logitsieve.heads._base.head import Head, Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sharded import (
    BOUNDS,
    NO_IDS,
    REPLICATED,
    Bounds,
    ReplicatedRows,
    Shard,
    ShardedSoftmax,
)
from logitsieve.index.checks import PARTS, private, require_structure
from logitsieve.index.files import read_small, regular, unreadable
from logitsieve.index.manifest import (
    CALIBRATION_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST,
    SHARDS_FOLDER,
    SPLIT,
    FileEntry,
    Manifest,
    ShardEntry,
    is_name,
    is_version,
)
from logitsieve.index.tensorfile import TensorFile, map_tensors
from logitsieve.utils.stored import KINDS, StoredMatrix

# The manifest and the methods of a shard that another process has: of the shard of this number.
Connect = Callable[[int], tuple[Manifest, Shard]]


@dataclass(frozen=True)
class Contents:
    """`parts` holds the arrays of every part this version knows, by part and name.

    They are mapped, but for the small ones that kernels use as addresses: those are copies.
    `mapped` holds the files that were mapped, by file name. Of an index in `shards`, these hold W;
    where other processes have the shards, there are none.
    """

    path: Path
    manifest: Manifest
    softmax: Softmax
    parts: Mapping[str, Arrays]
    mapped: Mapping[str, TensorFile]
    calibration: Mapping[str, Any] | None
    shards: tuple[Contents, ...] = ()

    def file(self, entry: FileEntry) -> Path:
        """The path of a file of the manifest."""
        return self.path / entry.file

    def shard(self, heads: Mapping[str, Head]) -> Shard:
        """The shard that these are the contents of, with its heads."""
        assert self.manifest.shard is not None
        return Shard(self.manifest.shard.first, self.softmax, heads)


def read_contents(path: Path | str, connect: Connect | None = None) -> Contents:
    """Map `path`; check names, sizes, headers and addresses. IndexUnreadable names what is wrong.

    Parts of heads that this version does not know are left to the digests. `connect` gives the
    shards of an index in shards, whose folders are not read then.
    """
    folder = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a mounted link
    if not is_version(folder.name) or not is_name(folder.parent.name):
        held = sorted(int(path.name) for path in folder.glob("[1-9]*") if is_version(path.name))
        versions = f"; versions in this folder: {', '.join(map(str, held))}" if held else ""
        reason = "an index lies in <name>/<version>/, version 1, 2, ..."
        raise IndexUnreadable(folder, reason + versions)
    return read_folder(folder, connect)


def read_folder(folder: Path, connect: Connect | None = None) -> Contents:
    """Map a folder that need not have the name of an index yet: `read_contents` otherwise."""
    if not folder.is_dir():
        raise IndexUnreadable(folder, "no such directory")
    file = folder / MANIFEST_FILE
    manifest = Manifest.from_json(read_small(file, MAX_MANIFEST), file)
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
    shards: tuple[Contents, ...] = ()
    if manifest.shards and connect is not None:
        remote = _connect_shards(folder, manifest, connect)
        softmax: Softmax = _joined(folder, manifest, parts, remote)
    elif manifest.shards:
        shards = _read_shards(folder, manifest)
        softmax = _joined(folder, manifest, parts, [shard.shard({}) for shard in shards])
    else:
        matrix, whole = StoredMatrix(manifest.dtype, parts["softmax"]["weight"]), manifest.shard
        norms = None if whole is None else (whole.norm, whole.bias)
        softmax = Softmax(matrix, parts["softmax"]["bias"], norms)
    return Contents(folder, manifest, softmax, parts, mapped, calibration, shards)


def _read_shards(folder: Path, whole: Manifest) -> tuple[Contents, ...]:
    """The shards that a manifest lists; IndexUnreadable names the first that is another."""
    shards, first = [], 0
    for number, entry in enumerate(whole.shards, start=1):
        shard = read_folder(folder / SHARDS_FOLDER / str(number))
        _check_shard(shard.path / MANIFEST_FILE, shard.manifest, entry, first, (folder, whole))
        shards.append(shard)
        first += entry.rows
    return tuple(shards)


def _connect_shards(folder: Path, whole: Manifest, connect: Connect) -> list[Shard]:
    """What `connect` gives for the shards that a manifest lists, checked as their folders are."""
    shards, first = [], 0
    for number, entry in enumerate(whole.shards, start=1):
        manifest, shard = connect(number)
        place = folder / SHARDS_FOLDER / str(number)
        _check_shard(place, manifest, entry, first, (folder, whole))
        shards.append(shard)
        first += entry.rows
    return shards


def _check_shard(
    file: Path, manifest: Manifest, entry: ShardEntry, first: int, whole: tuple[Path, Manifest]
) -> None:
    """IndexUnreadable unless a manifest is that of the shard whose rows begin at `first`."""
    own, (folder, listing) = manifest.shard, whole
    if own is None:
        raise IndexUnreadable(file, "a whole index, not a shard")
    if manifest.digest != entry.digest:
        last = own.first + manifest.vocab_size - 1
        held = f"rows {own.first} .. {last} of {own.digest[:12]}, digest {manifest.digest[:12]}"
        needed = f"rows {first} .. {first + entry.rows - 1}, digest {entry.digest[:12]}"
        raise IndexUnreadable(file, f"another shard: {held}; {folder} has {needed}")
    fits = (own.first, manifest.vocab_size, own.softmax_sha256) == (
        first, entry.rows, listing.softmax_sha256
    )  # fmt: skip
    if not fits or (manifest.dim, manifest.dtype) != (listing.dim, listing.dtype):
        raise IndexUnreadable(file, f"not the rows from {first} on that {folder} lists")
    if (SPLIT in manifest.parts) is not any(e.part == SPLIT for e in listing.heads.values()):
        raise IndexUnreadable(file, f"has other heads than {folder}")


def _joined(
    folder: Path, whole: Manifest, parts: Mapping[str, Arrays], shards: Sequence[Shard]
) -> ShardedSoftmax:
    """The softmax of shards, with what the folder has beside them."""
    norms, borders = shards[0].norms, [*(shard.first for shard in shards), whole.vocab_size]
    bounds, replicated, ids = None, None, NO_IDS
    for name in (BOUNDS.name, REPLICATED.name):
        if name in parts and not any(head.part == SPLIT for head in whole.heads.values()):
            reason = "is of shards with a sketch, which these have not: no head 'certified'"
            raise IndexUnreadable(folder / whole.parts[name].file, reason)
    if (arrays := parts.get(REPLICATED.name)) is not None:
        replicated = ReplicatedRows(arrays, norms)
        ids = replicated.ids
    if (arrays := parts.get(BOUNDS.name)) is not None:
        try:
            bounds = Bounds(arrays, borders, norms, ids)
        except ValueError as error:
            raise IndexUnreadable(folder / whole.parts[BOUNDS.name].file, str(error)) from error
    return ShardedSoftmax(shards, bounds, replicated)


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
