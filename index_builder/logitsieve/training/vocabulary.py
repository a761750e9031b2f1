"""Words by id, and windows of a text's ids.

Shape letters: N words of a text, T words of a window, W windows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from logitsieve.api.results import Int32, Int64

UNKNOWN, END = "<unk>", "<eos>"
VOCABULARY_FILE = "vocab.txt"
WINDOW = 70  # T: words read from an empty state when contexts are captured


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
        """Keep `<unk>`, `<eos>` and the most frequent words, `size` in all; ties go by alphabet."""
        words = (word for word, count in counts.items() if count and word not in (UNKNOWN, END))
        ranked = sorted(words, key=lambda word: (-counts[word], word))[: size - 2]
        chosen = sorted([*ranked, END], key=lambda word: (-counts.get(word, 0), word))
        return cls([UNKNOWN, *chosen])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read saved words."""
        return cls((folder / VOCABULARY_FILE).read_text(encoding="utf-8").split())

    def save(self, folder: Path) -> None:
        """Write the words, one per line."""
        text = "\n".join(self.words) + "\n"
        (folder / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")

    def encode(self, text: str) -> list[int]:
        """Return the ids of words separated by spaces; a line break is `<eos>`."""
        tokens = text.replace("\n", f" {END} ").split()
        return [self._ids.get(token, 0) for token in tokens]


def windows(ids_N: Int32, most: int) -> Int64:
    """Return windows [W, T] evenly spread over the text, about `most` words in all."""
    size = min(WINDOW, len(ids_N))
    total = len(ids_N) // size
    number = min(total, max(1, most // size))
    starts_W = np.linspace(0, total - 1, number).astype(np.int64) * size
    return np.asarray(ids_N[starts_W[:, None] + np.arange(size)], np.int64)
