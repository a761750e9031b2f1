"""The bundled language model in numpy: what `logitsieve.training.trainer` trains, without torch.

Shape letters: B rows, T words read at once, D hidden size, L layers, V words.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from logitsieve.api.results import ArrayLike, Float32
from logitsieve.index.tensorfile import map_tensors
from logitsieve.utils.floats import widened

WEIGHTS_FILE = "model.safetensors"

State: TypeAlias = list[tuple[Float32, Float32]]
"""Hidden and cell of each layer between calls, each float32 [B, D]."""


class Layer(NamedTuple):
    """Weights of one LSTM layer, gates in the order input, forget, cell, output."""

    of_input: Float32  # [D, 4D]
    of_hidden: Float32  # [D, 4D]
    bias: Float32  # [4D]


class Lstm(NamedTuple):
    """An LSTM with tied embeddings: its logits are W h + b."""

    weight: Float32  # [V, D], the embedding too
    bias: Float32  # [V]
    layers: tuple[Layer, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the saved model in float32; IndexUnreadable if it is damaged."""
        stored = map_tensors(folder / WEIGHTS_FILE, foreign=True).tensors
        return cls.of({name: widened(each) for name, each in stored.items()})

    @classmethod
    def of(cls, tensors: Mapping[str, Float32]) -> Self:
        """Return the model of these tensors, by their names in PyTorch."""
        count = sum(name.startswith("lstm.weight_ih_") for name in tensors)
        layers = tuple(
            Layer(
                np.ascontiguousarray(tensors[f"lstm.weight_ih_l{number}"].T),
                np.ascontiguousarray(tensors[f"lstm.weight_hh_l{number}"].T),
                tensors[f"lstm.bias_ih_l{number}"] + tensors[f"lstm.bias_hh_l{number}"],
            )
            for number in range(count)
        )
        return cls(tensors["embedding.weight"], tensors["output.bias"], layers)

    def hidden_states(self, ids: ArrayLike, state: State | None = None) -> tuple[Float32, State]:
        """Return what enters the softmax, [B, T, D], after each of `ids` [B, T], and the state."""
        read_BTD, after = self.weight[np.asarray(ids)], []
        zeros_BD = np.zeros((len(read_BTD), read_BTD.shape[2]), np.float32)
        starts = state or [(zeros_BD, zeros_BD)] * len(self.layers)
        for layer, start in zip(self.layers, starts, strict=True):
            read_BTD, end = _read(layer, read_BTD, start)
            after.append(end)
        return read_BTD, after


def _read(
    layer: Layer, input_BTD: Float32, start: tuple[Float32, Float32]
) -> tuple[Float32, tuple[Float32, Float32]]:
    hidden_BD, cell_BD = start
    gates_BTG = input_BTD @ layer.of_input + layer.bias
    out_BTD = np.empty_like(input_BTD)
    for step in range(input_BTD.shape[1]):
        gates_BG = gates_BTG[:, step] + hidden_BD @ layer.of_hidden
        enter, forget, new, leave = np.split(gates_BG, 4, axis=1)
        cell_BD = _sigmoid(forget) * cell_BD + _sigmoid(enter) * np.tanh(new)
        hidden_BD = out_BTD[:, step] = _sigmoid(leave) * np.tanh(cell_BD)
    return out_BTD, (hidden_BD, cell_BD)


def _sigmoid(gate: Float32) -> Float32:
    return np.asarray((np.tanh(gate / 2) + 1) / 2)
