"""Words by id, and text for readers from ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

UNKNOWN = "<unk>"
END = "<eos>"
VOCABULARY_FILE = "vocab.txt"

# Spacing around punctuation for readers, applied in order to text with spaces between all tokens.
JOINS = (
    (re.compile(r" ?<eos> ?"), "\n"),
    (re.compile(r"(?<=\bN) \. (?=N\b)"), "."),
    (re.compile(r"(?<=[_-]) (?=[_-])"), ""),
    (re.compile(r"__ (\w+) __"), r"__\1__"),
    (re.compile(r"-- (?=\w)"), "--"),
    (re.compile(r"(?<=[\w>]) ([_\u2019/-]) (?=[\w<])"), r"\1"),
    (re.compile(r" \( \)"), "()"),
    (re.compile(r" \. (?=\w+\(\))"), "."),
    (re.compile(r"([(\[{“]) "), r"\1"),
    (re.compile(r" ([.,;:?!%)\]}”])"), r"\1"),
)


class Vocabulary:
    """Words by id; id 0 is `<unk>`, and `<eos>` ends each paragraph."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if self.words[:1] != (UNKNOWN,) or END not in self._ids:
            raise ValueError(f"words: the first must be {UNKNOWN}, and {END} must be one of them")
        if len(self._ids) != len(self.words):
            raise ValueError("words: each may occur once only")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def most_frequent(cls, counts: Mapping[str, int], size: int) -> Self:
        """`<unk>` and the `size - 1` most frequent words, equal counts in alphabetical order.

        `<eos>` is always one of them; words of count 0 never are.
        """
        words = (word for word, count in counts.items() if count and word not in (UNKNOWN, END))
        ranked = sorted(words, key=lambda word: (-counts[word], word))[: size - 2]
        chosen = sorted([*ranked, END], key=lambda word: (-counts.get(word, 0), word))
        return cls([UNKNOWN, *chosen])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The words of `vocab.txt`, one a line in the order of their ids."""
        return cls((folder / VOCABULARY_FILE).read_text(encoding="utf-8").split())

    def save(self, folder: Path) -> None:
        text = "\n".join(self.words) + "\n"
        (folder / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")

    def encode(self, text: str) -> list[int]:
        """Ids of text that is already tokenised by spaces; a line break is `<eos>`."""
        tokens = text.replace("\n", f" {END} ").split()
        return [self._ids.get(token, 0) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """Text for a reader: `<eos>` is a line break, and punctuation is joined to its words."""
        text = " ".join(self.words[number] for number in ids)
        for pattern, replacement in JOINS:
            text = pattern.sub(replacement, text)
        return text
