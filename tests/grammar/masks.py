"""Matchers of random masks."""

from collections.abc import Sequence

import numpy as np


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
        bits = np.zeros(-(-self.vocab_size // 32) * 32, np.uint8)
        bits[list(self.now)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def forced(self) -> Sequence[int]:
        return self.now if self._forced else []
