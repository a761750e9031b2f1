"""The exact softmax as its users have it, by numpy, torch and faiss: what speed-ups are over."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import faiss
import numpy as np
import torch

from benchmarks.race.methods import Method, Queries, augmented, best_places
from benchmarks.race.points import HALF
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

TopK: TypeAlias = Callable[[Float32, int], np.ndarray]


def numpy_exact(softmax: Softmax) -> TopK:
    """A matrix product, argpartition, and a sort of the k best."""
    weight_DV, bias = softmax.weight.T, softmax.bias

    def search(hidden_states: Float32, k: int) -> np.ndarray:
        logits = hidden_states @ weight_DV
        logits += bias
        return best_places(logits, k)

    return search


def torch_exact(softmax: Softmax, dtype: torch.dtype = torch.float32) -> TopK:
    """torch.nn.functional.linear and torch.topk; in bfloat16 it rounds, so that it is not exact."""
    weight, bias = (torch.from_numpy(a.copy()).to(dtype) for a in (softmax.weight, softmax.bias))

    def search(hidden_states: Float32, k: int) -> np.ndarray:
        with torch.inference_mode():
            rows = torch.from_numpy(hidden_states).to(dtype)
            return torch.topk(torch.nn.functional.linear(rows, weight, bias), k)[1].numpy()

    return search


def faiss_exact(softmax: Softmax) -> TopK:
    """IndexFlatIP; the bias is one more dimension, of ones in the query."""
    rows, queries = augmented(softmax), Queries(softmax.dim)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return lambda hidden_states, k: np.asarray(index.search(queries(hidden_states), k)[1])


MAKERS: dict[str, Callable[[Softmax], TopK]] = {
    "numpy": numpy_exact,
    "torch": torch_exact,
    "faiss IndexFlatIP": faiss_exact,
    "torch bfloat16": partial(torch_exact, dtype=torch.bfloat16),
}


class ExactPeer(Method):
    """One of `MAKERS`; libraries that keep a copy of W could share it, so none is counted."""

    nbytes = 0

    def __init__(self, name: str, softmax: Softmax) -> None:
        self.name, self._search = name, MAKERS[name](softmax)
        self.kind = HALF if name == "torch bfloat16" else "dense float32"

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        return self._search(hidden_states, k)
