"""Matchers of random masks."""

from collections.abc import Sequence

import numpy as np


class Masks:
    """A matcher with a mask of its own at each step."""

    def __init__(self, allowed: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.vocab_size, self._allowed = vocab_size, allowed
        self.step = self.asked = self.masks = 0

    @property
    def now(self) -> Sequence[int]:
        return self._allowed[self.step]

    def allows(self, ids: Sequence[int]) -> Sequence[bool]:
        self.asked += len(ids)
        return [one in self.now for one in ids]

    def accept(self, token: int) -> None:
        assert token in self.now
        self.step += 1

    def mask(self) -> np.ndarray:
        self.masks += 1
        bits = np.zeros(-(-self.vocab_size // 32) * 32, np.uint8)
        bits[list(self.now)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def forced(self) -> Sequence[int]:
        return []
