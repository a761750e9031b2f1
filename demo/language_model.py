"""A small word-level LSTM language model with tied embeddings, and its vocabulary.

Press and Wolf, "Using the Output Embedding to Improve Language Models", EACL 2017 (the tying);
Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization", 2014 (the dropout).

Shape letters: B batch rows, T time steps, D hidden size, V vocabulary, L layers.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self, TypeAlias

from safetensors.torch import load_file, save
from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, Tensor]
"""What the LSTM carries from call to call: hidden and cell, each float32 [L, B, D]."""

UNKNOWN = "<unk>"
END = "<eos>"
WEIGHTS_FILE = "model.safetensors"
VOCABULARY_FILE = "vocab.txt"

# What a reader expects around punctuation, on text that has a space around every token. In order.
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
    def most_frequent(cls, paragraphs: Iterable[str], size: int) -> Self:
        """`<unk>` and the `size - 1` most frequent words, equal counts in alphabetical order."""
        counts: Counter[str] = Counter()
        for paragraph in paragraphs:
            counts.update([*paragraph.split(), END])
        counts.pop(UNKNOWN, None)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([UNKNOWN, *ranked[: size - 1]])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The words of `vocab.txt`, one a line in the order of their ids."""
        return cls((folder / VOCABULARY_FILE).read_text(encoding="utf-8").split())

    def save(self, folder: Path) -> None:
        """Writes `vocab.txt`."""
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


class LanguageModel(nn.Module):
    """Next-word logits, exactly W h + b, where W [V, D] is also the input embedding."""

    def __init__(
        self, vocabulary_size: int, dim: int = 200, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, dim)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(dim, dim, layers, batch_first=True, dropout=between)
        self.output = nn.Linear(dim, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """int64 [B, T] to logits float32 [B, T, V], and the state to go on from."""
        hidden_BTD, state = self.hidden(ids, state)
        logits_BTV: Tensor = self.output(hidden_BTD)
        return logits_BTV, state

    def hidden(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """int64 [B, T] to what `output` multiplies, float32 [B, T, D], and the state."""
        embedded_BTD = self.dropout(self.embedding(ids))
        hidden_BTD, state = self.lstm(embedded_BTD, state)
        return self.dropout(hidden_BTD), state

    def save(self, folder: Path) -> None:
        """Writes float16 weights, the tied matrix once, as `model.safetensors`."""
        tensors = {name: parameter.half() for name, parameter in self.named_parameters()}
        (folder / WEIGHTS_FILE).write_bytes(save(tensors))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The saved model in float32, ready for inference; sizes are those of the tensors."""
        tensors = {
            name: tensor.float() for name, tensor in load_file(folder / WEIGHTS_FILE).items()
        }
        vocabulary_size, dim = tensors["embedding.weight"].shape
        layers = sum(name.startswith("lstm.weight_ih_") for name in tensors)
        model = cls(vocabulary_size, dim, layers)
        model.load_state_dict({**tensors, "output.weight": tensors["embedding.weight"]})
        return model.eval()
