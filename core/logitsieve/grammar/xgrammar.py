"""Grammars that xgrammar has compiled, as matchers. It is no dependency: its user brings it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32
from logitsieve.grammar.matcher import allowed_by


class XGrammar:
    """A `Matcher` by an `xgrammar.GrammarMatcher` at the beginning of a text."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self.vocab_size, self._matcher = vocab_size, matcher
        self._mask: Int32 | None = None

    def allows(self, ids: Sequence[int]) -> Sequence[bool]:
        """See `Matcher`."""
        return allowed_by(self.mask(), ids)

    def accept(self, token: int) -> None:
        """See `Matcher`."""
        if not self._matcher.accept_token(token):
            raise InvalidRequest("token", token, "an id that the grammar allows")
        self._mask = None

    def mask(self) -> Int32:
        """See `Matcher`."""
        if self._mask is None:
            bits = np.full((1, -(-self.vocab_size // 32)), -1, np.int32)
            self._matcher.fill_next_token_bitmask(bits)
            self._mask = bits[0]
        return self._mask

    def forced(self) -> Sequence[int]:
        """See `Matcher`; the one id of a mask of one."""
        mask = self.mask()
        words = np.flatnonzero(mask)
        if words.size != 1:
            return []
        word = int(mask[words[0]]) & 0xFFFFFFFF
        return [] if word & (word - 1) else [32 * int(words[0]) + word.bit_length() - 1]
