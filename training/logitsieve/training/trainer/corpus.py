"""Text as int32 ids on disk, encoded once in pieces, then mapped and read in parallel streams.

The text is read once: each word gets a number at its first occurrence, and numbers are exchanged
for ids when the frequent words are known. The held-out text has no influence on that.

Shape letters: N words of a text, U different words, V vocabulary, B streams, T time steps, W
windows.
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
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

CHARACTERS = 1 << 20  # read at a time
LONGEST = 1 << 16  # characters of a word: a file with a longer one is not text
GZIPPED = b"\x1f\x8b"


def read_words(
    path: Path, field: str = "text", progress: Progress = no_progress
) -> Iterator[list[str]]:
    """Lists of words, split by white space; each line that is not empty ends with `<eos>`.

    `progress` gets ("read NAME", bytes read, size of the file). InvalidRequest names `field` where
    the file is no UTF-8 text, or cannot be read.
    """
    try:
        with path.open("rb") as file, _open(file) as text:
            size = path.stat().st_size
            for words in _split(text, field):
                progress(f"read {path.name}", file.tell(), size)
                yield words
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequest(field, f"{path} ({error})", "UTF-8 text, or that gzipped") from error


def _open(file: IO[bytes]) -> TextIOWrapper:
    gzipped = file.read(len(GZIPPED)) == GZIPPED
    file.seek(0)
    return TextIOWrapper(
        cast(IO[bytes], gzip.open(file)) if gzipped else file, encoding="utf-8-sig"
    )


def _split(file: TextIOWrapper, field: str) -> Iterator[list[str]]:
    # rest: the last word, which may continue in the next piece; begun: a line without its end.
    rest, begun = "", False
    reading: Callable[[], str] = lambda: file.read(CHARACTERS)  # noqa: E731 - `iter` wants a call
    for piece in iter(reading, ""):
        text = rest + piece
        rest = "" if text[-1].isspace() else text.rsplit(None, 1)[-1]
        words, begun = _words(text[: len(text) - len(rest)], begun)
        if max(map(len, [*words, rest])) > LONGEST:
            got = f"a word of more than {LONGEST} characters"
            raise InvalidRequest(field, got, "words, split by spaces")
        yield words
    yield _words(rest + "\n", begun)[0]


def _words(text: str, begun: bool) -> tuple[list[str], bool]:
    """Words and line ends, and True if the last line has words but no end yet."""
    words: list[str] = []
    *ended, last = text.split("\n")
    for line in ended:
        of_line = line.split()
        words += of_line
        if of_line or begun:
            words.append(END)
        begun = False
    of_last = last.split()
    return words + of_last, begun or bool(of_last)


FOLDER, SCRATCH = "corpus", ".tmp-corpus"
PIECE = 1 << 22  # words counted or exchanged at a time


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

    Without a file `valid` the last `valid_share` of the text is held out. 8 bytes a word on disk
    while it runs, 4 afterwards. `corpus/` appears at once when all is written.
    """
    scratch = folder / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
    scratch.mkdir()
    try:
        numbers: dict[str, int] = defaultdict(count().__next__)
        train = _number(text, "text", scratch, numbers, progress)
        if valid is None:
            border = len(train) - round(valid_share * len(train))
            train, held_out = train[:border], train[border:]
        else:
            held_out = _number(valid, "valid", scratch, numbers, progress)
        vocabulary, ids_U = _chosen(train, numbers, size)
        counts = np.zeros(len(vocabulary), np.int64)
        for name, numbered in (("train", train), ("valid", held_out)):
            _exchange(numbered, ids_U, scratch / f"{name}.npy", progress)
        for ids in _pieces(np.load(scratch / "train.npy", mmap_mode="r")):
            counts += np.bincount(ids, minlength=len(counts))
        np.save(scratch / "counts.npy", counts)
        vocabulary.save(folder)
        for path in scratch.glob("*.numbers"):
            path.unlink()
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        scratch.rename(folder / FOLDER)
    except BaseException:
        shutil.rmtree(scratch)
        raise
    return Corpus.open(folder)


def _number(
    path: Path, field: str, scratch: Path, numbers: dict[str, int], progress: Progress
) -> Int32:
    """int32 [N], mapped: each word's number, in the order of first occurrences."""
    file = scratch / f"{field}.numbers"
    with file.open("wb") as stream:
        for words in read_words(path, field, progress):
            stream.write(np.array([numbers[word] for word in words], np.int32).data)
    if not file.stat().st_size:
        raise InvalidRequest(field, f"{path} without a word", "text")
    return np.memmap(file, np.int32, "r")


def _chosen(train: Int32, numbers: dict[str, int], size: int) -> tuple[Vocabulary, Int32]:
    counts_U = np.zeros(len(numbers), np.int64)
    for piece in _pieces(train):
        counts_U += np.bincount(piece, minlength=len(numbers))
    frequent = dict(zip(numbers, counts_U.tolist(), strict=True))
    vocabulary = Vocabulary.most_frequent(frequent, size)
    ids_U = np.zeros(len(numbers), np.int32)
    for number, word in enumerate(vocabulary.words):
        if word in frequent:
            ids_U[numbers[word]] = number
    return vocabulary, ids_U


def _exchange(numbered: Int32, ids_U: Int32, out: Path, progress: Progress) -> None:
    header, done = np.lib.format.header_data_from_array_1_0(numbered), 0
    with out.open("wb") as stream:  # not mapped: on a full disk that is SIGBUS, this an OSError
        np.lib.format.write_array_header_1_0(stream, header)
        for piece in _pieces(numbered):
            stream.write(ids_U[piece].data)
            done += len(piece)
            progress(f"encode {out.stem}", done, len(numbered))


def _pieces(numbers: Int32) -> Iterator[Int32]:
    return (numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE))


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
        """Every batch, the last one shorter, so that at most B words are left out."""
        for start in range(0, self._length, self._steps):
            yield self._read(start, min(self._steps, self._length - start))

    def _read(self, start: int, steps: int) -> tuple[Tensor, Tensor]:
        places = (self._starts_B + start + np.arange(steps + 1)) % len(self._ids)
        ids = torch.from_numpy(self._ids[places].astype(np.int64))
        return ids[:, :-1], ids[:, 1:]


def epoch_shift(words: int, seed: int, epoch: int) -> int:
    """The start of an epoch's streams; it depends on no earlier epoch."""
    return int(np.random.default_rng([seed, epoch]).integers(words))


def windows(ids: Int32, most: int) -> Iterator[Tensor]:
    """Batches int64 [W, T] of windows evenly spread over the text, of some `most` words in all."""
    size = min(WINDOW, len(ids))
    total = len(ids) // size
    count = min(total, max(1, most // size))
    starts = torch.linspace(0, total - 1, count).long().numpy() * size
    for first in range(0, count, WINDOWS_AT_ONCE):
        places = starts[first : first + WINDOWS_AT_ONCE, None] + np.arange(size)
        yield torch.from_numpy(ids[places].astype(np.int64))
