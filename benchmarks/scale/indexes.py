"""Synthetic softmaxes of several sizes, whole and in shards, and contexts of them; made once.

python -m benchmarks.scale.indexes
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.race.prepare import CACHE
from benchmarks.race.synthetic import calibrated
from benchmarks.scale.sizes import DIM, KINDS, SHARDS, WORDS
from logitsieve.cli.output import bars
from logitsieve.index import split_index
from logitsieve.index_builder import BuildConfig, build

FIT, ASKED = 20_000, 100_000  # contexts that an index is built from, and that it is asked about
SCREEN = BuildConfig(clusters=100, budget=128, rounds=0)


def folder_of(words: int, cache: Path) -> Path:
    """`whole/1`, `shards-S/1`, `replicated-S/1`, `fit.npy` and `contexts.npy`."""
    return cache / "scale" / f"v{words}"


def contexts_of(words: int, cache: Path) -> np.ndarray:
    """float32 [ASKED, DIM], mapped; the index was not built from them."""
    contexts: np.ndarray = np.load(folder_of(words, cache) / "contexts.npy", mmap_mode="r")
    return contexts


def prepared(words: int, shards: int, cache: Path, replicated: bool = False) -> Path:
    """The index of a size in so many shards, 0 of one in one piece, which is made if need be.

    `replicated`: with the rows beside the shards that the contexts of the fit need most often.
    """
    folder = folder_of(words, cache)
    kind = KINDS[replicated]
    whole, split = folder / "whole" / "1", folder / f"{kind}-{shards}" / "1"
    with bars() as progress:
        if not whole.exists():
            folder.mkdir(parents=True, exist_ok=True)
            source, weight, bias = calibrated(words, DIM)
            np.save(folder / "contexts.npy", source.draw(ASKED, 3))
            np.save(folder / "fit.npy", source.draw(FIT, 1))
            build(
                weight, bias, folder / "fit.npy", whole, config=SCREEN,
                heldout=source.draw(FIT // 10, 2), progress=progress,
            )  # fmt: skip
        if not shards:
            return whole
        if not split.exists():
            contexts = np.load(folder / "fit.npy") if replicated else None
            split_index(whole, split, shards, bounds=True, contexts=contexts, progress=progress)
    return split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, nargs="*", default=WORDS, help="V")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where to write")
    options = parser.parse_args()
    for words in options.words:
        for shards in (0, *SHARDS):
            print(prepared(words, shards, options.cache))
        for shards in SHARDS:
            print(prepared(words, shards, options.cache, replicated=True))


if __name__ == "__main__":
    main()
