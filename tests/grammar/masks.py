"""Matchers of random masks."""

from collections.abc import Sequence

import numpy as np

from logitsieve.api.mask import packed
from logitsieve.api.results import Int32


class Masks:
    """A matcher with a mask of its own at each step."""

    def __init__(
        self, allowed: Sequence[Sequence[int]], vocab_size: int, *, forced: bool = False
    ) -> None:
        self.vocab_size, self._allowed, self._forced = vocab_size, allowed, forced
        self.step = self.masks = 0

    @property
    def now(self) -> Sequence[int]:
        return self._allowed[self.step]

    def accept(self, token: int) -> None:
        assert token in self.now
        self.step += 1

    def mask(self) -> np.ndarray:
        self.masks += 1
        words: Int32 = packed(np.isin(np.arange(self.vocab_size), self.now)[None])[0]
        return words

    def forced(self) -> Sequence[int]:
        return self.now if self._forced else []
