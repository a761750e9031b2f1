"""An index split by the rows of W into shards, each an index of its own.

Shape letters: V vocabulary, D hidden size, N contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Int32
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sharded import BOUNDS, NO_IDS, REPLICATED, SHARDED_HEADS
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
from logitsieve.index.reader import open_index, verify_index
from logitsieve.index.shard_parts import (
    ShardRows,
    bounds_of,
    often_computed,
    regrouped,
    replicated_of,
)
from logitsieve.index.writer import check_written, fill_folder, new_path, write_index
from logitsieve.utils.hidden import as_hidden
from logitsieve.utils.options import Progress, no_progress

REPLICATED_SHARE = 20  # of so many rows one is replicated


def split_index(
    source: Path | str,
    out: Path | str,
    shards: int,
    *,
    bounds: bool = False,
    contexts: ArrayLike | None = None,
    replicated: int | None = None,
    progress: Progress = no_progress,
) -> Path:
    """Write the index `source` in so many shards as `out` (<name>/<version>), and return it.

    Rows lie in their order, in shards of equal size but for multiples of 256. `exact`, `certified`
    and `screen` are kept, other heads are not. `contexts` [N, D] keep the rows of W that these need
    most often beside the shards too: `replicated` at most, V / 20 unless it is given. `bounds`
    keeps the sketches of all others there, by which answers may be proven without a shard. The
    source is verified first. InvalidRequest names the argument, IndexUnreadable a file of it.
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
    if "certified" not in manifest.heads and (bounds or contexts is not None):
        name = "bounds" if bounds else "contexts"
        raise InvalidRequest(name, "given", "none for an index without the head 'certified'")
    borders = shard_borders(manifest.vocab_size, shards)
    ids = _often_needed(source, manifest, contexts, replicated, progress)
    with new_folder(out) as folder:
        entries, beside = [], list[ShardRows]()
        for number, (first, last) in enumerate(pairwise(borders), start=1):
            rows = _rows_of(contents, first, last)
            digest = _write_shard(contents, folder / SHARDS_FOLDER / str(number), rows)
            entries.append(ShardEntry(last - first, digest))
            if bounds or len(ids):
                beside.append(rows)
            progress("shards", number, shards)
        kept = {REPLICATED.name: replicated_of(beside, ids)} if len(ids) else {}
        kept |= {BOUNDS.name: bounds_of(beside, ids)} if bounds else {}
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


def _often_needed(
    source: Path | str,
    manifest: Manifest,
    contexts: ArrayLike | None,
    most: int | None,
    progress: Progress,
) -> Int32:
    """The ids of the rows that are kept beside the shards too, those needed most often first."""
    if contexts is None:
        if most is not None:
            raise InvalidRequest("replicated", most, "none without `contexts`")
        return NO_IDS
    largest = manifest.vocab_size // 2
    most = manifest.vocab_size // REPLICATED_SHARE if most is None else most
    if type(most) is not int or not 0 <= most <= largest:
        raise InvalidRequest("replicated", most, f"0 .. {largest}, half of the rows")
    index = open_index(source)
    try:
        hidden = as_hidden(contexts, manifest.dim)
        nothing = np.zeros(len(hidden) + 1, np.int64), np.empty(0, np.int32)
        index.softmax.logits64(hidden, *nothing)  # which refuses what is not finite, by its row
    except InvalidRequest as error:
        field = error.field.replace("hidden", "contexts")
        raise InvalidRequest(field, error.got, error.allowed) from error
    return often_computed(index.head("certified"), hidden, most, progress)


def _rows_of(contents: Contents, first: int, last: int) -> ShardRows:
    """Rows first .. last-1 of W, and of its sketch if there is one."""
    whole, sketch = contents.softmax, contents.parts.get(SPLIT)
    softmax = Softmax(whole.matrix[first:last], whole.bias[first:last].copy(), whole.norms)
    return ShardRows(first, softmax, {} if sketch is None else sketch_of_rows(sketch, first, last))


def _write_shard(contents: Contents, out: Path, rows: ShardRows) -> str:
    """Write a shard as an index; its digest."""
    manifest, (norm, bias) = contents.manifest, contents.softmax.norms
    heads = _heads(manifest, ("exact", "certified"))
    parts = {SPLIT: rows.sketch} if "certified" in heads else {}
    shard = ShardOf(
        first=rows.first,
        vocab_size=manifest.vocab_size,
        digest=manifest.digest,
        softmax_sha256=manifest.softmax_sha256,
        norm=norm,
        bias=bias,
    )
    default = "certified" if "certified" in heads else "exact"
    write_index(
        out, softmax=rows.softmax, parts=parts, heads=heads, default_head=default,
        config=manifest.config, seeds=manifest.seeds, shard=shard,
    )  # fmt: skip
    return read_contents(out).manifest.digest


def _write_whole(
    contents: Contents, folder: Path, shards: tuple[ShardEntry, ...], kept: Mapping[str, Arrays]
) -> None:
    """Write what is not split: manifest, screen, `kept` parts, vocabulary and calibration."""
    manifest = contents.manifest
    heads = _heads(manifest, tuple(SHARDED_HEADS))
    parts = {
        entry.part: contents.parts[entry.part]
        for entry in heads.values()
        if entry.part not in (None, SPLIT)
    }
    parts |= kept
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
        "coarse": regrouped(sketch["coarse"], places),
    }
