"""A word-level LSTM language model and its file.

Tied embeddings (Press and Wolf 2017); dropout between layers (Zaremba et al. 2014).

Shape letters: T time steps, L layers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from logitsieve.index.tensorfile import map_tensors, pieces
from logitsieve.utils.floats import widened

State: TypeAlias = tuple[Tensor, Tensor]
"""State of the LSTM between calls: hidden and cell, each float32 [L, B, D]."""

WEIGHTS_FILE = "model.safetensors"
NORMALIZED = {"contexts": "normalized"}


class Recurrent(nn.Module):
    """A language model without its softmax; `sparse` refers to the embedding's gradients."""

    def __init__(
        self, vocab_size: int, dim: int, layers: int, dropout: float, *, sparse: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim, sparse=sparse)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(dim, dim, layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def hidden_states(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the softmax's inputs float32 [B, T, D], and the next state."""
        hidden_BTD, state = self.lstm(self.dropout(self.embedding(ids)), state)
        return self.dropout(hidden_BTD), state


class LanguageModel(Recurrent):
    """A language model with logits W h + b; with `normalized`, h has length 1."""

    def __init__(
        self,
        vocab_size: int,
        dim: int = 200,
        layers: int = 2,
        *,
        tied: bool = True,
        normalized: bool = False,
    ) -> None:
        super().__init__(vocab_size, dim, layers, 0.0)
        self.normalized = normalized
        self.output = nn.Linear(dim, vocab_size)
        nn.init.zeros_(self.output.bias)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        hidden_BTD, state = self.hidden_states(ids, state)
        return self.output(hidden_BTD), state

    def hidden_states(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        hidden_BTD, state = super().hidden_states(ids, state)
        return normalize(hidden_BTD, dim=-1) if self.normalized else hidden_BTD, state

    def save(self, folder: Path) -> None:
        arrays = {
            name: each.detach().half().cpu().numpy() for name, each in self.named_parameters()
        }
        with (folder / WEIGHTS_FILE).open("wb") as stream:
            stream.writelines(pieces(arrays, NORMALIZED if self.normalized else {}))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the saved model in float32, for inference. IndexUnreadable if damaged."""
        file = map_tensors(folder / WEIGHTS_FILE, foreign=True)
        tensors = {name: torch.from_numpy(widened(each)) for name, each in file.tensors.items()}
        return cls.of(tensors, normalized=file.metadata.get("contexts") == "normalized")

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, normalized: bool = False) -> Self:
        """Return a model of these tensors, not copied; without `output.weight` it is tied."""
        vocab_size, dim = tensors["embedding.weight"].shape
        layers = sum(name.startswith("lstm.weight_ih_") for name in tensors)
        tied = "output.weight" not in tensors
        with torch.device("meta"):
            model = cls(vocab_size, dim, layers, tied=tied, normalized=normalized)
        every = {"output.weight": tensors["embedding.weight"], **tensors}
        model.load_state_dict(every, assign=True)
        if tied:
            model.output.weight = model.embedding.weight
        return model.eval()
