"""Words of an index as the console shows them: cut, found, or an id where there are no words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index

LONGEST = 200  # characters of a word that are sent
MOST_FOUND = 20

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


def find_words(index: Index, text: str) -> list[Facts]:
    """Words that are, begin with or contain `text`, in this order; and the id that it names."""
    digits = text.removeprefix("#")
    named = [int(digits)] if _is_id(digits, index) else []
    words = index.vocabulary
    if words is None or not text:
        return word_facts(index, named)
    ranked: tuple[list[int], ...] = [], [], []
    for number, word in enumerate(words):
        if text in word:
            ranked[0 if word == text else 1 if word.startswith(text) else 2].append(number)
            if len(ranked[1]) > 50 * MOST_FOUND:
                break
    for each in ranked:
        each.sort(key=lambda number: len(words[number]))
    ids = dict.fromkeys([*ranked[0], *named, *ranked[1], *ranked[2]])
    return word_facts(index, list(ids)[:MOST_FOUND])


def read_word(index: Index, value: object) -> int:
    """The id of a word, or an id itself; InvalidRequest names `word`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < index.vocab_size:
            return value
        raise InvalidRequest("word", value, f"an id, 0 to {index.vocab_size - 1}")
    if not isinstance(value, str) or index.vocabulary is None:
        allowed = "a word or an id" if index.vocabulary else "an id: the index has no vocabulary"
        raise InvalidRequest("word", f"{value!r:.80}", allowed)
    try:
        return index.vocabulary.index(value)
    except ValueError:
        raise InvalidRequest("word", f"{value!r:.80}", "a word of the vocabulary") from None


def read_ids(index: Index, field: str, value: object) -> list[int]:
    """Words and ids of a list; InvalidRequest names `field`."""
    if not isinstance(value, list):
        raise InvalidRequest(field, f"{value!r:.80}", "a list of words and ids")
    try:
        return np.unique([read_word(index, each) for each in value]).tolist() if value else []
    except InvalidRequest as error:
        raise InvalidRequest(field, error.got, error.allowed) from error


def _is_id(text: str, index: Index) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12 and int(text) < index.vocab_size
