"""Matchers, which tell the ids that may come next in a text: their protocol, and xgrammar's."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.mask import unpacked
from logitsieve.api.results import Bool, Int32


class Matcher(Protocol):
    """The state of a grammar in one text. Not thread-safe."""

    vocab_size: int

    def accept(self, token: int) -> None:
        """Append an id to the text; InvalidRequest if it is not allowed."""

    def mask(self) -> Int32:
        """Return the allowed ids as bits, [ceil(V / 32)]; bit i % 32 of word i // 32 is id i."""

    def forced(self) -> Sequence[int]:
        """Return ids that must come next, in order; it may miss some."""


def allowed_ids(matcher: Matcher) -> Int32:
    return np.flatnonzero(allowed_bits(matcher)).astype(np.int32)


def allowed_bits(matcher: Matcher) -> Bool:
    bits: Bool = unpacked(matcher.mask()[None], matcher.vocab_size)[0]
    return bits


class XGrammar:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self.vocab_size, self._matcher = vocab_size, matcher
        self._mask: Int32 | None = None

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise InvalidRequest("token", token, "an id that the grammar allows")
        self._mask = None

    def mask(self) -> Int32:
        if self._mask is None:
            bits = np.full((1, -(-self.vocab_size // 32)), -1, np.int32)
            self._matcher.fill_next_token_bitmask(bits)
            self._mask = bits[0]
        return self._mask

    def forced(self) -> Sequence[int]:
        mask = self.mask()
        words = np.flatnonzero(mask)
        if words.size != 1:
            return []
        word = int(mask[words[0]]) & 0xFFFFFFFF
        return [] if word & (word - 1) else [32 * int(words[0]) + word.bit_length() - 1]
