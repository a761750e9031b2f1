"""What a grammar has to tell about the next token of a text."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from logitsieve.api.results import Int32


class Matcher(Protocol):
    """The state of a grammar in one text. Not thread-safe."""

    vocab_size: int

    def allows(self, ids: Sequence[int]) -> Sequence[bool]:
        """Return whether each id may come next, as `mask` has it."""

    def accept(self, token: int) -> None:
        """Go on by an id; InvalidRequest for one that is not allowed."""

    def mask(self) -> Int32:
        """Return the allowed ids as bits, [ceil(V / 32)], bit i % 32 of word i // 32 for id i."""

    def forced(self) -> Sequence[int]:
        """Return the ids that must come next, in order; perhaps none although one must."""


def allowed_ids(matcher: Matcher) -> Int32:
    """Return the ids that may come next, ascending."""
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[: matcher.vocab_size]).astype(np.int32)


def allowed_by(mask: Int32, ids: Sequence[int]) -> list[bool]:
    """Return the bits of ids in a mask."""
    named = np.asarray(ids, np.int64)
    return [bool(bit) for bit in mask[named >> 5] >> (named & 31) & 1]
