"""Words of an index for the console: cut to a length, or read from a question."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index

LONGEST = 200  # characters of a word that are sent
LIKE = 5  # words that an error names

Facts = dict[str, Any]  # of JSON


def word_facts(index: Index, ids: Iterable[int]) -> list[Facts]:
    """id, word (None without a vocabulary), and `cut` where a word is longer than is sent."""
    words = index.vocabulary
    if words is None:
        return [{"id": int(number), "word": None, "cut": False} for number in ids]
    return [
        {
            "id": int(number),
            "word": words[number][:LONGEST],
            "cut": len(words[number]) > LONGEST,
        }
        for number in ids
    ]


def read_word(index: Index, value: object) -> int:
    """The id of a word, or an id itself; InvalidRequest names `word`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < index.vocab_size:
            return value
        raise InvalidRequest("word", value, f"an id, 0 to {index.vocab_size - 1}")
    if not isinstance(value, str) or index.vocabulary is None:
        allowed = "a word or an id" if index.vocabulary else "an id: the index has no vocabulary"
        raise InvalidRequest("word", f"{value!r:.80}", allowed)
    if value in index.vocabulary:
        return index.vocabulary.index(value)
    like = (word[:LONGEST] for word in index.vocabulary if value in word)
    allowed = ", ".join(["a word of the vocabulary", *map(repr, islice(like, LIKE))])
    raise InvalidRequest("word", f"{value!r:.80}", allowed)


def read_ids(index: Index, field: str, value: object) -> list[int]:
    """Words and ids of a list; InvalidRequest names `field`."""
    if not isinstance(value, list):
        raise InvalidRequest(field, f"{value!r:.80}", "a list of words and ids")
    try:
        return np.unique([read_word(index, each) for each in value]).tolist() if value else []
    except InvalidRequest as error:
        raise InvalidRequest(field, error.got, error.allowed) from error
