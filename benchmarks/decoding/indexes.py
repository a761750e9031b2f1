"""The decoder that is measured: over an index that is built once into the cache folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.race.bars import bars
from benchmarks.race.datasets import DATASETS, Dataset, load
from benchmarks.race.ours import CLUSTERS_TRIED, LARGE, TARGETS
from benchmarks.race.prepare import CACHE, SHARED
from logitsieve.decoding import LocalDecoder
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index.tensorfile import PADDING
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.fit_svd import preview_arrays

OUT = Path(__file__).parents[1] / "results" / "decoding"
REAL, BUNDLED = "lm-docs", "demo"
DRAWING = ("exact", "certified", "screen")
SCORING = (*DRAWING, "svd", "graph")


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """With the options that every benchmark of this folder has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--cache", type=Path, default=CACHE, help="datasets and indexes")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--index", type=Path, help="an index of the dataset that is there already")
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    """Which softmax: real contexts where they are there."""
    parser.add_argument("--data", choices=DATASETS, metavar="DATA", default=REAL)


def dataset(options: argparse.Namespace) -> Dataset:
    """The one asked for; the bundled one, and it says so, where what that is made of is absent."""
    wanted: str = options.data
    if wanted == REAL and not (options.shared / "data" / "lm-docs-10k-200.npz").exists():
        print(f"{options.shared} is absent: {BUNDLED} stands for {REAL}")
        wanted = BUNDLED
    return load(wanted, options.shared, options.cache)


def decoder_of(data: Dataset, options: argparse.Namespace) -> LocalDecoder:
    """On one thread, everything compiled; SystemExit if `--index` is of another softmax."""
    path = options.index or _built(data, options.cache)
    index = open_index(path, threads=1)
    if not np.array_equal(index.softmax.weight, data.weight):
        raise SystemExit(f"{path} is no index of {data.name}: W differs")
    decoder = LocalDecoder(index)
    decoder.warm()
    return decoder


def _built(data: Dataset, cache: Path) -> Path:
    heads = DRAWING if data.weight.size > LARGE else SCORING
    path = cache / "indexes" / f"{data.index}-decoding" / "1"
    if not path.exists():
        with bars() as progress:
            build(
                data.weight,
                data.bias,
                data.fit,
                path,
                heads=heads,
                target_precision=TARGETS[-1],
                config=BuildConfig(clusters_tried=CLUSTERS_TRIED),
                progress=progress,
                heldout=data.heldout,
                best_effort=True,
            ).close()
    return path


def at_rank(index: Index, rank: int, cache: Path) -> Path:
    """The same index with a preview of that rank, which is what `lowrank` uses then."""
    path = cache / "indexes" / f"rank-{rank}" / index.digest.split(":")[-1][:16] / "1"
    if path.exists():
        return path
    manifest = index.manifest
    entries = dict(manifest.heads)
    knobs = {**index.head("svd").knobs, "width": rank}
    entries["svd"] = HeadEntry("svd", knobs)
    parts = {name: read_part(index, name) for name in manifest.parts if name != "softmax"}
    parts["svd"] = preview_arrays(index.softmax, rank)
    return write_index(
        path, softmax=index.softmax, parts=parts, heads=entries, default_head=index.default_head
    )


def read_part(index: Index, name: str) -> dict[str, np.ndarray]:
    """The arrays of a part, read from its file."""
    found = load_file(index.path / index.manifest.parts[name].file)
    return {tensor: array for tensor, array in found.items() if not tensor.startswith(PADDING)}
