"""Split an index by the rows of W into shards, each an index of its own."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sketch import SKETCH
from logitsieve.index.files import new_folder
from logitsieve.index.index import verify_index
from logitsieve.index.manifest import SHARD_ALIGNED, ShardOf
from logitsieve.index.reader import Contents, read_contents, read_vocabulary
from logitsieve.index.writer import new_path, write_index
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.levels import NUMBERS_IN
from logitsieve.utils.options import Progress, no_progress

SHARDS_FOLDER = "shards"
# The first of these that an index has is the default head of its shards.
SHARD_HEADS = ("sketch", "full")


def split_index(
    source: Path | str, out: Path | str, shards: int, *, progress: Progress = no_progress
) -> Path:
    """Write the rows of an index as `shards` indexes in `out`/shards/1, 2, ...; return `out`.

    `out` is a new <name>/<version>. A shard holds consecutive rows from a multiple of 256 on, their
    words, and SHARD_HEADS. The source is verified first. InvalidRequest names the argument,
    IndexUnreadable the file.
    """
    out = new_path(out)
    verify_index(source, progress)
    contents = read_contents(source)
    if contents.manifest.shard is not None:
        raise InvalidRequest("source", f"{source}, a shard", "a whole index")
    vocab_size = contents.manifest.vocab_size
    blocks = -(-vocab_size // SHARD_ALIGNED)
    if not 1 <= shards <= blocks:
        raise InvalidRequest("shards", shards, f"1 to {blocks}, for at least 256 rows each")
    firsts = [blocks * number // shards * SHARD_ALIGNED for number in range(shards)]
    with new_folder(out) as folder:
        for number, rows in enumerate(pairwise([*firsts, vocab_size]), start=1):
            _write_shard(contents, folder / SHARDS_FOLDER / str(number), slice(*rows))
            progress("shards", number, shards)
    return out


def shard_folders(version: Path | str) -> list[Path]:
    """List the folders of a version's shards, in order; IndexUnreadable if there are none."""
    folder = Path(version) / SHARDS_FOLDER
    count = sum(each.name.isdecimal() for each in folder.glob("*"))
    if not count:
        raise IndexUnreadable(folder, "it has no shards")
    return [folder / str(number) for number in range(1, count + 1)]


def _write_shard(contents: Contents, out: Path, rows: slice) -> None:
    manifest, source = contents.manifest, contents.softmax
    heads = {name: manifest.heads[name] for name in SHARD_HEADS if name in manifest.heads}
    parts: dict[str, Arrays] = {}
    if SKETCH.name in contents.parts:
        parts[SKETCH.name] = _sketch_of(contents.parts[SKETCH.name], rows)
    words = read_vocabulary(contents.path, manifest)
    write_index(
        out,
        softmax=Softmax(source.matrix[rows], source.bias[rows].copy()),
        parts=parts,
        heads=heads,
        default_head=next(iter(heads)),
        vocabulary=None if words is None else words[rows],
        config=manifest.config,
        seeds=manifest.seeds,
        shard=ShardOf(
            first=rows.start, vocab_size=manifest.vocab_size, softmax_sha256=manifest.softmax_sha256
        ),
    )


def _sketch_of(sketch: Arrays, rows: slice) -> dict[str, np.ndarray]:
    """Return the sketch of some rows, which are whole groups; the limits of all still hold."""
    groups = slice(rows.start // LANES, -(-rows.stop // LANES))
    return {**sketch, **{name: sketch[name][groups].copy() for name in NUMBERS_IN}}
