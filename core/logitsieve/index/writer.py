"""Write an index completely or not at all; an existing one never changes."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.heads import HEADS
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays, check_values
from logitsieve.index.files import TEMPORARY, fsync_folder, link_or_copy, new_folder, write_file
from logitsieve.index.manifest import (
    CALIBRATION_FILE,
    MANIFEST_FILE,
    VOCABULARY_FILE,
    FileEntry,
    HeadEntry,
    Manifest,
    ShardOf,
    canonical,
    is_name,
    is_version,
)
from logitsieve.index.reader import check_heads, read_folder, spec_of
from logitsieve.index.tensorfile import CODES, MAX_DIMENSIONS, pieces
from logitsieve.index.verify import check_scales, verify_contents

_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")


def write_index(
    out: Path | str,
    *,
    softmax: Softmax,
    parts: Mapping[str, Arrays],
    heads: Mapping[str, HeadEntry],
    default_head: str,
    vocabulary: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    calibration: Mapping[str, Any] | None = None,
    checkpoint: Callable[[str], None] = lambda step: None,
    finite: bool = False,
    shard: ShardOf | None = None,
) -> Path:
    """Write the index directory `out` (<name>/<version>, new) and return it.

    `parts` are named arrays by part, without `softmax`. `checkpoint` gets the name of each finished
    step. `finite` says that the softmax's numbers were checked.

    Equal arguments give equal files, except for `calibration`. InvalidRequest names the argument,
    also if the written files fail the full check.
    """
    out = new_path(out)
    if not finite:
        _require_finite(softmax)
    arrays = _storable_parts(softmax, parts)
    words = None if vocabulary is None else _vocabulary_bytes(vocabulary, softmax.vocab_size)
    measured = None if calibration is None else _plain("calibration", calibration)
    fields: dict[str, Any] = {
        "vocab_size": softmax.vocab_size,
        "dim": softmax.dim,
        "dtype": softmax.matrix.kind,
        "softmax_sha256": softmax.sha256,
        "heads": {name: _plain_head(name, head) for name, head in heads.items()},
        "default_head": default_head,
        "config": _plain("config", config or {}),
        "seeds": _plain("seeds", seeds or {}),
        "shard": shard,
    }
    _check_manifest(fields, arrays)

    with new_folder(out) as folder:
        checkpoint("folder")
        fill_folder(folder, arrays, words, measured, fields, checkpoint)
        check_written(folder)
    checkpoint("named")
    return out


def link_index(
    source: Path | str,
    out: Path | str,
    *,
    calibration: Mapping[str, Any],
    checkpoint: Callable[[str], None] = lambda step: None,
) -> Path:
    """Write `source` as `out` with another calibration, by hard links; return `out`."""
    out, source = new_path(out), Path(source)
    measured = _plain("calibration", calibration)
    data = (source / MANIFEST_FILE).read_bytes()
    manifest = Manifest.from_json(data, source / MANIFEST_FILE)
    with new_folder(out) as folder:
        checkpoint("folder")
        for entry in manifest.files():
            sha256 = link_or_copy(source / entry.file, folder / entry.file)
            if sha256 not in (None, entry.sha256):
                raise IndexUnreadable(source / entry.file, f"sha256 {sha256}, not {entry.sha256}")
            checkpoint(f"file {entry.file}")
        write_file(folder / CALIBRATION_FILE, [canonical(measured) + b"\n"])
        checkpoint("calibration")
        write_file(folder / MANIFEST_FILE, [data])
        fsync_folder(folder)
        checkpoint("manifest")
    checkpoint("named")
    return out


def fill_folder(
    folder: Path,
    arrays: Mapping[str, Arrays],
    words: bytes | None,
    measured: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
    checkpoint: Callable[[str], None],
) -> None:
    """Write every file, the manifest last; each is durable before the next is begun."""
    metadata = {"softmax_sha256": fields["softmax_sha256"]}
    written = {}
    for name, part in sorted(arrays.items()):
        half = name == "softmax" and fields["dtype"] == "BF16"  # its array is uint16
        codes = {"weight": "BF16"} if half else {}
        file = folder / f"{name}.safetensors"
        written[name] = FileEntry(file.name, *write_file(file, pieces(part, metadata, codes)))
        checkpoint(f"part {name}")
    listed = None
    if words is not None:
        listed = FileEntry(VOCABULARY_FILE, *write_file(folder / VOCABULARY_FILE, [words]))
    checkpoint("vocabulary")
    if measured is not None:
        write_file(folder / CALIBRATION_FILE, [canonical(measured) + b"\n"])
    checkpoint("calibration")
    manifest = Manifest(parts=written, vocabulary=listed, **fields)
    write_file(folder / MANIFEST_FILE, [manifest.file_bytes()])
    fsync_folder(folder)
    checkpoint("manifest")


def check_written(folder: Path) -> None:
    """Check a written folder as a reader does; InvalidRequest names the part at fault."""
    try:
        verify_contents(read_folder(folder))
    except IndexUnreadable as error:
        if error.file.stem == "softmax":
            raise matrix_changed() from error
        field = f"parts[{error.file.stem!r}]"
        raise InvalidRequest(field, error.reason, "docs/index-format.md") from error


def matrix_changed() -> InvalidRequest:
    """Return the error for a matrix that is written to while its index is built."""
    got = "numbers that changed while the index was built"
    return InvalidRequest("weight", got, "an array or file that nothing writes to meanwhile")


def new_path(out: Path | str) -> Path:
    """Return `out` as an absolute, new <name>/<version>, or raise InvalidRequest."""
    path = Path(os.path.abspath(out))  # noqa: PTH100 - a linked folder keeps its name
    if not is_version(path.name) or not is_name(path.parent.name):
        allowed = "<name>/<version>, the name [a-z0-9][a-z0-9._-]{0,63}, the version 1, 2, ..."
        raise InvalidRequest("out", out, allowed)
    if os.path.lexists(path):
        raise InvalidRequest("out", f"{path}, which exists", "a version not yet written")
    parent = next(folder for folder in path.parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise InvalidRequest("out", f"{path}, but {parent} is no folder", "<name>/<version>")
    try:
        tempfile.TemporaryDirectory(dir=parent, prefix=TEMPORARY).cleanup()
    except OSError as error:
        got = f"{path}, but {parent} takes no folder: {error.strerror}"
        raise InvalidRequest("out", got, "<name>/<version> where folders can be made") from error
    return path


def _require_finite(softmax: Softmax) -> None:
    arrays = {"weight": softmax.stored, "bias": softmax.bias}
    try:
        check_values(spec_of("softmax", arrays), arrays, lambda _: None)
        check_scales(softmax.matrix)
    except ValueError as error:
        raise InvalidRequest("softmax", str(error), "docs/index-format.md") from error


def _storable_parts(softmax: Softmax, parts: Mapping[str, Arrays]) -> dict[str, Arrays]:
    if "softmax" in parts:
        raise InvalidRequest("parts", "'softmax'", "parts beside it")
    matrix = {"weight": softmax.stored, "bias": softmax.bias.copy()}
    return {
        name: {key: _storable(name, key, array) for key, array in arrays.items()}
        for name, arrays in {"softmax": matrix, **parts}.items()
    }


def _storable(part: str, key: str, array: np.ndarray) -> np.ndarray:
    if not _KEY.fullmatch(key):
        raise InvalidRequest(f"parts[{part!r}]", repr(key), f"array names {_KEY.pattern}")
    little = array.dtype.newbyteorder("<")
    if little not in CODES or array.size == 0 or not 1 <= array.ndim <= MAX_DIMENSIONS:
        got = f"{key} {array.dtype} {list(array.shape)}"
        allowed = f"1 to {MAX_DIMENSIONS} dimensions, none empty, of {', '.join(map(str, CODES))}"
        raise InvalidRequest(f"parts[{part!r}]", got, allowed)
    return np.ascontiguousarray(array, little)


def _vocabulary_bytes(vocabulary: Sequence[str], V: int) -> bytes:
    if len(vocabulary) != V:
        raise InvalidRequest("vocabulary", f"{len(vocabulary)} words", f"{V}, one for each id")
    if wrong := [word for word in vocabulary if not isinstance(word, str) or "\n" in word]:
        raise InvalidRequest("vocabulary", f"{wrong[0]!r:.80}", "strings without a line break")
    try:
        return "".join(f"{word}\n" for word in vocabulary).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("vocabulary", "a lone surrogate", "words in UTF-8") from error


def _plain(field: str, value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        allowed = "finite numbers, strings, lists, objects"
        raise InvalidRequest(field, str(error), allowed) from error
    return plain


def _plain_head(name: str, head: HeadEntry) -> HeadEntry:
    field, knobs = f"heads[{name!r}]", {knob: float(v) for knob, v in head.knobs.items()}
    config = _plain(f"{field}.config", head.config)
    return HeadEntry(head.part, _plain(f"{field}.knobs", knobs), config)


def _check_manifest(fields: Mapping[str, Any], parts: Iterable[str]) -> None:
    stand_ins = {name: FileEntry(f"{name}.safetensors", 1, "0" * 64) for name in parts}
    try:
        check_heads(Manifest.from_json(Manifest(parts=stand_ins, **fields).file_bytes()), HEADS)
    except (IndexUnreadable, ValueError) as error:
        reason = error.reason if isinstance(error, IndexUnreadable) else str(error)
        raise InvalidRequest("heads", reason, "docs/index-format.md") from error
