"""The language model of `logitsieve train` beside the versions of an index, run by numpy.

Its file is models/NAME/model.safetensors: an embedding, an LSTM whose outputs are the contexts of
the index, and the softmax that the index was built from. Words are those of the index.

Shape letters: V vocabulary, D hidden size, L layers.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index import Index
from logitsieve.index.tensorfile import read_header
from logitsieve.utils.floats import finite, widened

FILE = "model.safetensors"
UNKNOWN, END = "<unk>", "<eos>"
MOST_WORDS = 200  # of a text
COMPARED = 64  # rows of W, to tell another model's
NEAR = 0.1  # of the length of their logits: what W in types of few bits may change
NEEDED = "a model of `logitsieve train`, from whose softmax the index was built"
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Layer(NamedTuple):
    """Weights of an LSTM's layer, by gates: input, forget, cell, output."""

    read: Float32  # [4D, D], of the layer below
    kept: Float32  # [4D, D], of its own output before
    bias: Float32  # [4D]


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """Matrices [V, D] and the bias [V] are mapped: float32, float16 or bits of bfloat16."""

    embedding: np.ndarray
    output: np.ndarray
    bias: np.ndarray
    layers: tuple[Layer, ...]
    normalized: bool  # contexts are divided by their length


class Reader:
    """A model's state after some words."""

    def __init__(self, model: LanguageModel) -> None:
        zero = np.zeros(model.embedding.shape[1], np.float32)
        self._model, self._states = model, [(zero, zero) for _ in model.layers]

    def read(self, words: Sequence[int]) -> Float32:
        """The context [1, D] after these words more, one at least."""
        for word in words:
            above = widened(self._model.embedding[word])
            for number, layer in enumerate(self._model.layers):
                hidden, cell = self._states[number]
                gates = layer.read @ above + layer.kept @ hidden + layer.bias
                taken, held, new, shown = np.split(gates, 4)
                cell = _sigmoid(held) * cell + _sigmoid(taken) * np.tanh(new)
                above = _sigmoid(shown) * np.tanh(cell)
                self._states[number] = above, cell
        if self._model.normalized:
            above = above / max(float(np.linalg.norm(above)), 1e-12)
        return above[None]


def _sigmoid(x: Float32) -> Float32:
    return np.asarray((np.tanh(x / 2) + 1) / 2, np.float32)


def reads_words(index: Index) -> bool:
    """True where a model lies beside an index that has words."""
    return index.manifest.vocabulary is not None and _file(index).is_file()


def model_of(index: Index) -> LanguageModel:
    """The model beside the index; InvalidRequest names `text` where there is none, or another's."""
    file = _file(index)
    if not reads_words(index):
        allowed = f"`kept` or `row`: {file.parent.name}/{FILE} and a vocabulary are not both there"
        raise InvalidRequest("text", "words", allowed)
    status = file.stat()
    model = _load(file, status.st_mtime_ns, status.st_size)
    if model.output.shape != (index.vocab_size, index.dim):
        raise _other(file, f"V, D = {list(model.output.shape)}")
    ids = np.linspace(0, index.vocab_size - 1, min(COMPARED, index.vocab_size)).astype(np.int32)
    hidden = np.random.default_rng(0).standard_normal((1, index.dim), np.float32)
    logits = index.logits(hidden, ids[None])[0]
    own = widened(model.output[ids]) @ hidden[0] + widened(model.bias[ids])
    if not np.linalg.norm(logits - own) <= NEAR * np.linalg.norm(own):
        raise _other(file, "another softmax")
    return model


def read_text(index: Index, text: object) -> list[int]:
    """Ids of the words of a text, apart by spaces, 0 of those unknown; InvalidRequest: `text`."""
    words = index.vocabulary
    if not isinstance(text, str) or words is None:
        raise InvalidRequest("text", f"{text!r:.80}", "words, of an index that has a vocabulary")
    if words[0] != UNKNOWN or END not in words:
        allowed = f"a vocabulary of `logitsieve train`: {UNKNOWN} first, and {END}"
        raise InvalidRequest("text", "words of another vocabulary", allowed)
    tokens = split_words(text)
    if not 1 <= len(tokens) <= MOST_WORDS:
        raise InvalidRequest("text", f"{len(tokens)} words", f"1 to {MOST_WORDS}")
    wanted = set(tokens)
    ids = {word: number for number, word in enumerate(words) if word in wanted}
    return [ids.get(token, 0) for token in tokens]


def split_words(text: str) -> list[str]:
    """Words apart by spaces; a line's end is `<eos>`."""
    return text.replace("\n", f" {END} ").split()


def _file(index: Index) -> Path:
    return index.path.parent / FILE


def _other(file: Path, got: str) -> InvalidRequest:
    return InvalidRequest("text", f"{file.parent.name}/{FILE}: {got}", NEEDED)


@lru_cache(maxsize=2)
def _load(file: Path, changed_ns: int, size: int) -> LanguageModel:
    """Load again where the file's time or size is another."""
    try:
        with file.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        begin, spans, metadata = read_header(mapped, foreign=True)
        tensors = {span.name: span.array(mapped, begin) for span in spans}
        embedding = tensors["embedding.weight"]
        layers: list[Layer] = []
        while f"lstm.weight_ih_l{len(layers)}" in tensors:
            names = [f"lstm.{part}_l{len(layers)}" for part in PARTS]
            _require_shapes(tensors, names, embedding.shape[1])
            read, kept, *biases = (widened(tensors[name]) for name in names)
            layers.append(Layer(read, kept, biases[0] + biases[1]))
        output = tensors.get("output.weight", embedding)
        bias = tensors["output.bias"]
        if not layers or embedding.shape != output.shape or bias.shape != output.shape[:1]:
            raise ValueError("not an LSTM's tensors")
    except KeyError as error:
        raise _other(file, f"without {error!s:.80}") from error
    except (OSError, ValueError, IndexError) as error:
        raise _other(file, f"{error!s:.80}") from error
    normalized = metadata.get("contexts") == "normalized"
    return LanguageModel(embedding, output, bias, tuple(layers), normalized)


def _require_shapes(tensors: dict[str, np.ndarray], names: Sequence[str], dim: int) -> None:
    for name in names:
        needed = [4 * dim, dim] if "weight" in name else [4 * dim]
        if list(tensors[name].shape) != needed or not finite(tensors[name]).all():
            raise ValueError(f"{name} {list(tensors[name].shape)}, not finite {needed}")
