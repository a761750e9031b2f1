"""Text as int32 ids on disk, encoded once, then mapped and read in parallel streams.

The text is read once: each word gets a number at its first occurrence, and numbers are exchanged
for ids when the frequent words are known. The held-out text has no influence on that.

Shape letters: N words of a text, U different words, V vocabulary, B streams, T time steps, W
windows.
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32, Int64
from logitsieve.training.trainer.vocabulary import END, Vocabulary
from logitsieve.utils.options import Progress, no_progress

FOLDER, SCRATCH = "corpus", ".tmp-corpus"
GZIPPED = b"\x1f\x8b"
LINES_A_REPORT = 1024  # between reports of progress


def read_words(
    path: Path, field: str = "text", progress: Progress = no_progress
) -> Iterator[list[str]]:
    """Yield the words of each line that has any, split by white space, and `<eos>`.

    `progress` gets ("read NAME", bytes read, size of the file). InvalidRequest names `field` where
    the file is no UTF-8 text, or cannot be read.
    """
    try:
        with path.open("rb") as file, _open(file) as text:
            size = path.stat().st_size
            for number, line in enumerate(text):
                if words := line.split():
                    yield [*words, END]
                if number % LINES_A_REPORT == 0:
                    progress(f"read {path.name}", file.tell(), size)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequest(field, f"{path} ({error})", "UTF-8 text, or that gzipped") from error


def _open(file: IO[bytes]) -> TextIOWrapper:
    gzipped = file.read(len(GZIPPED)) == GZIPPED
    file.seek(0)
    return TextIOWrapper(
        cast(IO[bytes], gzip.open(file)) if gzipped else file, encoding="utf-8-sig"
    )


class Corpus(NamedTuple):
    """Mapped ids to train on and to validate by, and the counts of classes in the former."""

    train: Int32  # [N]
    valid: Int32  # [N']
    counts: Int64  # [V]
    vocabulary: Vocabulary

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what `encode` wrote into a run's folder."""
        train, valid, counts = (
            np.load(folder / FOLDER / f"{name}.npy", mmap_mode="r")
            for name in ("train", "valid", "counts")
        )
        return cls(train, valid, counts, Vocabulary.load(folder))


def encode(
    folder: Path,
    text: Path,
    valid: Path | None,
    *,
    size: int,
    valid_share: float,
    progress: Progress = no_progress,
) -> Corpus:
    """Write `corpus/` and `vocab.txt`, of at most `size` words, into a run's folder.

    Without a file `valid` the last `valid_share` of the text is held out. Holds 8 bytes a word in
    memory. `corpus/` appears at once when all is written.
    """
    numbers: dict[str, int] = defaultdict(count().__next__)
    train = _numbered(text, "text", numbers, progress)
    if valid is None:
        border = len(train) - round(valid_share * len(train))
        train, held_out = train[:border], train[border:]
    else:
        held_out = _numbered(valid, "valid", numbers, progress)
    counts_U = np.bincount(train, minlength=len(numbers)).tolist()
    vocabulary = Vocabulary.most_frequent(dict(zip(numbers, counts_U, strict=True)), size)
    ids_U = np.zeros(len(numbers), np.int32)
    for number, word in enumerate(vocabulary.words):
        if word in numbers:
            ids_U[numbers[word]] = number
    ids = ids_U[train]
    scratch = folder / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
    scratch.mkdir()
    np.save(scratch / "train.npy", ids)
    np.save(scratch / "valid.npy", ids_U[held_out])
    np.save(scratch / "counts.npy", np.bincount(ids, minlength=len(vocabulary)))
    vocabulary.save(folder)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    scratch.rename(folder / FOLDER)
    return Corpus.open(folder)


def _numbered(path: Path, field: str, numbers: dict[str, int], progress: Progress) -> Int32:
    """int32 [N]: each word's number, in the order of first occurrences."""
    found = array("i")
    for words in read_words(path, field, progress):
        found.extend([numbers[word] for word in words])
    if not found:
        raise InvalidRequest(field, f"{path} without a word", "text")
    return np.frombuffer(found, np.int32)


WINDOW = 70  # words read from an empty state when contexts are captured, T
WINDOWS_AT_ONCE = 16


class TextStreams:
    """The text as a ring from `shift` on, cut into B streams of equal length.

    `len` is the number of batches. Words that fill no whole batch are left out.
    """

    def __init__(self, ids: Int32, streams: int, steps: int, shift: int = 0) -> None:
        self._ids, self._steps = ids, steps
        self._length = max(0, len(ids) - 1) // streams
        self._starts_B = shift + np.arange(streams)[:, None] * self._length

    def __len__(self) -> int:
        return self._length // self._steps

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and next words, int64 [B, T] each; row b continues that of the batch before."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._read(number * self._steps, self._steps)

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every batch, the last one shorter, so that at most B words are left out."""
        for start in range(0, self._length, self._steps):
            yield self._read(start, min(self._steps, self._length - start))

    def _read(self, start: int, steps: int) -> tuple[Tensor, Tensor]:
        places = (self._starts_B + start + np.arange(steps + 1)) % len(self._ids)
        ids = torch.from_numpy(self._ids[places].astype(np.int64))
        return ids[:, :-1], ids[:, 1:]


def epoch_shift(words: int, seed: int, epoch: int) -> int:
    """Return the start of an epoch's streams; it depends on no earlier epoch."""
    return int(np.random.default_rng([seed, epoch]).integers(words))


def windows(ids: Int32, most: int) -> Iterator[Tensor]:
    """Yield batches int64 [W, T] of windows evenly spread over the text, about `most` words."""
    size = min(WINDOW, len(ids))
    total = len(ids) // size
    number = min(total, max(1, most // size))
    starts = torch.linspace(0, total - 1, number).long().numpy() * size
    for first in range(0, number, WINDOWS_AT_ONCE):
        places = starts[first : first + WINDOWS_AT_ONCE, None] + np.arange(size)
        yield torch.from_numpy(ids[places].astype(np.int64))
