"""An index split by the rows of W into shards, each an index of its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.certified import SKETCH
from logitsieve.index.contents import Contents, read_contents, read_vocabulary
from logitsieve.index.files import new_folder
from logitsieve.index.manifest import SHARD_ALIGNED, ShardOf
from logitsieve.index.reader import verify_index
from logitsieve.index.writer import new_path, write_index
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.utils.options import Progress, no_progress

SHARDS_FOLDER = "shards"
KEPT_HEADS = ("exact", "certified")
NO_CODE = 128  # of a coordinate that is not there


def split_index(
    source: Path | str, out: Path | str, shards: int, *, progress: Progress = no_progress
) -> Path:
    """Write the rows of an index as `shards` indexes in `out`/shards/1, 2, ...; return `out`.

    `out` is a new folder <name>/<version>. Rows lie in their order, in shards of equal size except
    for multiples of 256. The heads `exact` and `certified` are kept, and the vocabulary. The source
    is verified first. InvalidRequest names the argument, IndexUnreadable a file of the source.
    """
    out = new_path(out)
    verify_index(source, progress)
    contents = read_contents(source)
    if contents.manifest.shard is not None:
        raise InvalidRequest("source", f"{source}, a shard", "a whole index")
    borders = shard_borders(contents.manifest.vocab_size, shards)
    with new_folder(out) as folder:
        for number, rows in enumerate(pairwise(borders), start=1):
            _write_shard(contents, folder / SHARDS_FOLDER / str(number), slice(*rows))
            progress("shards", number, shards)
    return out


def shard_borders(vocab_size: int, shards: int) -> list[int]:
    """The first row of each shard, and V. InvalidRequest for more shards than blocks of 256."""
    blocks = -(-vocab_size // SHARD_ALIGNED)
    if not 1 <= shards <= blocks:
        raise InvalidRequest("shards", shards, f"1 to {blocks}, for at least 256 rows each")
    firsts = [blocks * number // shards * SHARD_ALIGNED for number in range(shards)]
    return [*firsts, vocab_size]


def _write_shard(contents: Contents, out: Path, rows: slice) -> None:
    manifest, whole = contents.manifest, contents.softmax
    heads = {name: entry for name, entry in manifest.heads.items() if name in KEPT_HEADS}
    parts: dict[str, Arrays] = {}
    if "certified" in heads:
        parts[SKETCH.name] = sketch_of_rows(contents.parts[SKETCH.name], rows)
    words = read_vocabulary(contents.path, manifest)
    options: dict[str, Any] = {"config": manifest.config, "seeds": manifest.seeds}
    write_index(
        out,
        softmax=Softmax(whole.matrix[rows], whole.bias[rows].copy()),
        parts=parts,
        heads=heads,
        default_head="certified" if "certified" in heads else "exact",
        vocabulary=None if words is None else words[rows],
        shard=ShardOf(
            first=rows.start,
            vocab_size=manifest.vocab_size,
            softmax_sha256=manifest.softmax_sha256,
        ),
        **options,
    )


def sketch_of_rows(sketch: Arrays, rows: slice) -> dict[str, np.ndarray]:
    """The sketch of some rows of W, in the order that they have in that of all.

    `limits` and `norms` hold for all rows, so for some; the basis of the codes stays the same.
    """
    order = sketch["order"]
    places = np.flatnonzero((order >= rows.start) & (order < rows.stop))
    return {
        **sketch,
        "order": order[places] - np.int32(rows.start),
        "fine": np.ascontiguousarray(sketch["fine"][rows]),
        "coarse": _regrouped(sketch["coarse"], places),
    }


def _regrouped(coarse: np.ndarray, places: Int64) -> np.ndarray:
    """Groups of 16 of the rows at these places, filled up as docs/index-format.md says.

    A group has codes of 16 rows by fours, then their scales, rests and biases as float32: all of
    its rows by four bytes each.
    """
    fours = coarse.reshape(len(coarse), -1, LANES, 4)
    nothing = np.full(fours.shape[1::2], NO_CODE, np.uint8)
    nothing[-3:] = np.array([[0.0], [0.0], [-np.inf]], np.float32).view(np.uint8)
    groups = -(-len(places) // LANES)
    rows = np.tile(nothing, (groups * LANES, 1, 1))
    rows[: len(places)] = fours[places // LANES, :, places % LANES]
    grouped = rows.reshape(groups, LANES, -1, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(grouped).reshape(groups, -1)
