"""Texts as int32 ids on disk, read in parallel streams.

Shape letters: N words of a text, B streams, T time steps.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32, Int64
from logitsieve.index_builder.capture.stream_sample import text_chunks
from logitsieve.training import TrainConfig
from logitsieve.training.vocabulary import END, Vocabulary
from logitsieve.utils.options import Progress, no_progress


def read_words(path: Path, field: str = "text") -> Iterator[list[str]]:
    """Yield the words of each line that has any, then `<eos>`. InvalidRequest names `field`."""
    for chunk in text_chunks(path, field):
        for line in chunk.split("\n"):
            if words := line.split():
                yield [*words, END]


class Corpus(NamedTuple):
    """Ids to train and to validate on, and how often each class occurs in the former."""

    train: Int32
    valid: Int32
    counts: Int64
    vocabulary: Vocabulary

    @classmethod
    def open(cls, folder: Path) -> Self:
        train, valid, counts = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in cls._fields[:3]
        )
        return cls(train, valid, counts, Vocabulary.load(folder))

    def save(self, folder: Path) -> None:
        for name in self._fields[:3]:
            np.save(folder / f"{name}.npy", getattr(self, name))
        self.vocabulary.save(folder)


def encode(config: TrainConfig, progress: Progress = no_progress) -> Corpus:
    """Read texts as ids of the most frequent words of the training text; takes 8 bytes per word."""
    if config.text is None:
        raise InvalidRequest("text", "nothing", "a text file, or --resume")
    numbers: dict[str, int] = defaultdict(count().__next__)
    progress(f"read {config.text.name}", 0, 0)
    train = _numbered(config.text, "text", numbers)
    if config.valid is None:
        border = len(train) - round(config.valid_share * len(train))
        train, held_out = train[:border], train[border:]
    else:
        held_out = _numbered(config.valid, "valid", numbers)
    counts_U = np.bincount(train, minlength=len(numbers)).tolist()
    known = dict(zip(numbers, counts_U, strict=True))
    vocabulary = Vocabulary.most_frequent(known, config.vocab_size)
    ids_U = np.array(vocabulary.encode(" ".join(numbers)), np.int32)
    ids = ids_U[train]
    return Corpus(ids, ids_U[held_out], np.bincount(ids, minlength=len(vocabulary)), vocabulary)


def _numbered(path: Path, field: str, numbers: dict[str, int]) -> Int32:
    words = chain.from_iterable(read_words(path, field))
    ids = np.fromiter(map(numbers.__getitem__, words), np.int32)
    if not ids.size:
        raise InvalidRequest(field, f"{path} without a word", "text")
    return ids


class TextStreams:
    """A text as a ring that begins at `shift`, cut into B streams of equal `length`."""

    def __init__(self, ids: Int32, streams: int, shift: int = 0, device: str = "cpu") -> None:
        self._ids, self._device, self.length = ids, device, (len(ids) - 1) // streams
        self._starts_B = shift + np.arange(streams)[:, None] * self.length

    def read(self, start: int, steps: int) -> tuple[Tensor, Tensor]:
        steps = min(steps, self.length - start)
        places = (self._starts_B + start + np.arange(steps + 1)) % len(self._ids)
        ids = torch.from_numpy(self._ids[places].astype(np.int64)).to(self._device)
        return ids[:, :-1], ids[:, 1:]
