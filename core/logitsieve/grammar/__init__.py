"""Grammars, which tell which ids may come next, and decoders that follow them."""

from logitsieve.grammar.following import Followed, next_ids
from logitsieve.grammar.grammars import Grammar, Grammars, TokenizerParts
from logitsieve.grammar.matcher import Matcher, XGrammar, allowed_ids

__all__ = [
    "Followed", "Grammar", "Grammars", "Matcher", "TokenizerParts", "XGrammar", "allowed_ids",
    "next_ids",
]  # fmt: skip
