"""A text as parallel streams of words, and windows spread over it.

Shape letters: N words of the text, B streams, T time steps, W windows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Int32

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
