"""Decoding word by word: what a language model reads next, with the candidates of each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logitsieve.decoding import LocalDecoder
from logitsieve.server.config import ServeConfig
from logitsieve.server.console.answers import draws, read_number, read_whole, top
from logitsieve.server.console.language_model import (
    END,
    UNKNOWN,
    Reader,
    model_of,
    read_text,
    split_words,
)
from logitsieve.server.console.words import Facts

MOST_STEPS = 30


def decode(decoder: LocalDecoder, question: Mapping[str, Any], config: ServeConfig) -> Facts:
    """`steps` words after `text`, fewer where the paragraph ends; each with its k best words.

    A word is the best where `temperature` is 0, the default, or drawn with `seed` plus its place.
    """
    steps = read_whole(question, "steps", 10, MOST_STEPS)
    drawn = read_number(question, "temperature", 0.0) != 0
    ids = read_text(decoder.index, question.get("text"))
    reader = Reader(model_of(decoder.index))
    taken: list[Facts] = []
    words = ids
    while len(taken) < steps and END not in (each["word"]["word"] for each in taken[-1:]):
        hidden = reader.read(words)
        facts = top(decoder, hidden, question, config)
        candidates = facts.pop("words")
        word = candidates[0]
        if drawn:
            seed = question.get("seed", 0)
            own = seed + len(taken) if type(seed) is int else seed
            one = {**question, "samples": 1, "seed": own}
            [word] = draws(decoder, hidden, one, config)["words"]
        taken.append({**facts, "word": word, "candidates": candidates})
        words = [word["id"]]
    read = zip(split_words(question["text"]), ids, strict=True)
    unknown = dict.fromkeys(word for word, number in read if not number and word != UNKNOWN)
    return {"unknown": list(unknown), "steps": taken}
