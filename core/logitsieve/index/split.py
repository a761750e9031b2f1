"""An index split by the rows of W into shards, each an index of its own.

Shape letters: V vocabulary, D hidden size, G groups of 16 rows, F coordinates coded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sharded import BOUNDS, SHARDED_HEADS
from logitsieve.index.contents import Contents, read_contents
from logitsieve.index.files import new_folder, read_small
from logitsieve.index.manifest import (
    SHARD_ALIGNED,
    SHARDS_FOLDER,
    SPLIT,
    HeadEntry,
    Manifest,
    ShardEntry,
    ShardOf,
)
from logitsieve.index.reader import verify_index
from logitsieve.index.writer import check_written, fill_folder, new_path, write_index
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA
from logitsieve.utils.options import Progress, no_progress

NO_CODE = 128  # of a coordinate that is not there


def split_index(
    source: Path | str,
    out: Path | str,
    shards: int,
    *,
    bounds: bool = False,
    progress: Progress = no_progress,
) -> Path:
    """Write the index `source` in so many shards as `out` (<name>/<version>), and return it.

    Rows lie in their order, in shards of equal size but for multiples of 256. `exact`, `certified`
    and `screen` are kept, other heads are not. `bounds` keeps the coarse codes of all rows beside
    the shards, by which answers may be proven without one. The source is verified first.
    InvalidRequest names the argument, IndexUnreadable a file of the source.
    """
    out = new_path(out)
    verify_index(source, progress)
    contents = read_contents(source)
    manifest = contents.manifest
    if manifest.shard or manifest.shards:
        raise InvalidRequest("source", f"{source}, in shards or one of them", "a whole index")
    if manifest.default_head not in SHARDED_HEADS:
        allowed = f"one of {', '.join(SHARDED_HEADS)}, which work over shards"
        raise InvalidRequest("default_head", repr(manifest.default_head), allowed)
    if bounds and SPLIT not in contents.parts:
        raise InvalidRequest("bounds", bounds, "False for an index without the head 'certified'")
    borders = shard_borders(manifest.vocab_size, shards)
    with new_folder(out) as folder:
        entries = []
        for number, (first, last) in enumerate(pairwise(borders), start=1):
            digest = _write_shard(contents, folder / SHARDS_FOLDER / str(number), first, last)
            entries.append(ShardEntry(last - first, digest))
            progress("shards", number, shards)
        kept = {BOUNDS.name: bounds_of(contents.parts[SPLIT], borders)} if bounds else {}
        _write_whole(contents, folder, tuple(entries), kept)
        check_written(folder)
    return out


def shard_borders(vocab_size: int, shards: int) -> list[int]:
    """The first row of each shard, and V. InvalidRequest for more shards than blocks of 256."""
    blocks = -(-vocab_size // SHARD_ALIGNED)
    if not 1 <= shards <= blocks:
        raise InvalidRequest("shards", shards, f"1 to {blocks}, for at least 256 rows each")
    firsts = [blocks * number // shards * SHARD_ALIGNED for number in range(shards)]
    return [*firsts, vocab_size]


def _write_shard(contents: Contents, out: Path, first: int, last: int) -> str:
    """Write rows first .. last-1 as an index; its digest."""
    whole, manifest = contents.softmax, contents.manifest
    norm, bias = whole.norms
    softmax = Softmax(whole.matrix[first:last], whole.bias[first:last].copy(), whole.norms)
    heads = _heads(manifest, ("exact", "certified"))
    parts = {}
    if "certified" in heads:
        parts[SPLIT] = sketch_of_rows(contents.parts[SPLIT], first, last)
    shard = ShardOf(
        first=first,
        vocab_size=manifest.vocab_size,
        digest=manifest.digest,
        softmax_sha256=manifest.softmax_sha256,
        norm=norm,
        bias=bias,
    )
    default = "certified" if "certified" in heads else "exact"
    write_index(
        out, softmax=softmax, parts=parts, heads=heads, default_head=default,
        config=manifest.config, seeds=manifest.seeds, shard=shard,
    )  # fmt: skip
    return read_contents(out).manifest.digest


def _write_whole(
    contents: Contents, folder: Path, shards: tuple[ShardEntry, ...], bounds: Mapping[str, Arrays]
) -> None:
    """Write what is not split: manifest, screen, `bounds`, vocabulary and calibration."""
    manifest = contents.manifest
    heads = _heads(manifest, tuple(SHARDED_HEADS))
    parts = {
        entry.part: contents.parts[entry.part]
        for entry in heads.values()
        if entry.part not in (None, SPLIT)
    }
    parts |= bounds
    words = manifest.vocabulary
    fields: dict[str, Any] = {
        "vocab_size": manifest.vocab_size,
        "dim": manifest.dim,
        "dtype": manifest.dtype,
        "softmax_sha256": manifest.softmax_sha256,
        "heads": heads,
        "default_head": manifest.default_head,
        "config": manifest.config,
        "seeds": manifest.seeds,
        "shards": shards,
    }
    text = None if words is None else read_small(contents.file(words), words.size)
    fill_folder(folder, parts, text, contents.calibration, fields)


def _heads(manifest: Manifest, kept: tuple[str, ...]) -> dict[str, HeadEntry]:
    return {name: entry for name, entry in manifest.heads.items() if name in kept}


def sketch_of_rows(sketch: Arrays, first: int, last: int) -> dict[str, np.ndarray]:
    """The sketch of rows first .. last-1, in the order that they have in that of all.

    `limits` and `norms` hold for all rows, so for some; the basis of the codes stays the same.
    """
    order = sketch["order"]
    places = np.flatnonzero((order >= first) & (order < last))
    rows: Int32 = order[places] - np.int32(first)
    return {
        **sketch,
        "order": rows,
        "fine": np.ascontiguousarray(sketch["fine"][first:last]),
        "coarse": _regrouped(sketch["coarse"], places),
    }


def bounds_of(sketch: Arrays, borders: Sequence[int]) -> dict[str, np.ndarray]:
    """The part `bounds` of shards that begin at these borders."""
    pieces = [sketch_of_rows(sketch, first, last)["coarse"] for first, last in pairwise(borders)]
    common = {name: sketch[name] for name in BOUNDS.tensors if name != "coarse"}
    return {**common, "coarse": np.concatenate(pieces)}


def _regrouped(coarse: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Groups of 16 of the rows at these places, filled up as docs/index-format.md says."""
    groups, width = len(coarse), coarse.shape[1] // LANES - COARSE_EXTRA
    codes = coarse[:, : LANES * width].reshape(groups, width // 4, LANES, 4)
    codes = codes.transpose(0, 2, 1, 3).reshape(groups * LANES, width)[places]
    extras = coarse[:, LANES * width :].copy().view(np.float32).reshape(groups, 3, LANES)
    extras = extras.transpose(0, 2, 1).reshape(groups * LANES, 3)[places]
    count = -(-len(places) // LANES)
    missing = count * LANES - len(places)
    codes = np.concatenate([codes, np.full((missing, width), NO_CODE, np.uint8)])
    filler = np.array([0.0, 0.0, -np.inf], np.float32)  # scale, rest and bias
    extras = np.concatenate([extras, np.tile(filler, (missing, 1))])
    quads = codes.reshape(count, LANES, width // 4, 4).transpose(0, 2, 1, 3)
    floats = np.ascontiguousarray(extras.reshape(count, LANES, 3).transpose(0, 2, 1))
    parts = quads.reshape(count, -1), floats.reshape(count, -1).view(np.uint8)
    return np.concatenate(parts, axis=1)
