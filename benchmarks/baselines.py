"""The exact softmax's top-k as its users have it today: numpy, torch, faiss. One thread each."""

from __future__ import annotations

import faiss
import numpy as np
import torch

from benchmarks.machine import aligned
from benchmarks.timing import Search
from logitsieve.heads import Softmax


def numpy_exact(softmax: Softmax) -> Search:
    """A matrix product, argpartition, and a sort of the k best."""
    weight_DV, bias = softmax.weight.T, softmax.bias

    def search(hidden: np.ndarray, k: int) -> object:
        logits = hidden @ weight_DV
        logits += bias
        best = np.argpartition(logits, -k, axis=1)[:, -k:]
        values = np.take_along_axis(logits, best, axis=1)
        order = np.argsort(-values, axis=1)
        return np.take_along_axis(best, order, axis=1), np.take_along_axis(values, order, axis=1)

    return search


def torch_exact(softmax: Softmax, dtype: torch.dtype = torch.float32) -> Search:
    """torch.nn.functional.linear and torch.topk; `dtype` float32 or bfloat16."""
    weight, bias = (torch.from_numpy(a.copy()).to(dtype) for a in (softmax.weight, softmax.bias))

    def search(hidden: np.ndarray, k: int) -> object:
        with torch.inference_mode():
            rows = torch.from_numpy(hidden).to(dtype)
            return torch.topk(torch.nn.functional.linear(rows, weight, bias), k)

    return search


def faiss_exact(softmax: Softmax) -> Search:
    """IndexFlatIP; the bias is one more dimension, of ones in the query."""
    index = faiss.IndexFlatIP(softmax.dim + 1)
    index.add(np.concatenate([softmax.weight, softmax.bias[:, None]], axis=1))
    room: dict[int, np.ndarray] = {}

    def search(hidden: np.ndarray, k: int) -> object:
        queries = room.setdefault(
            len(hidden), aligned(np.ones((len(hidden), softmax.dim + 1), "f4"))
        )
        queries[:, :-1] = hidden
        return index.search(queries, k)

    return search


def single_thread() -> None:
    """Hold every library to one thread; BLAS threads are held by OMP_NUM_THREADS=1."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def baselines(softmax: Softmax) -> dict[str, Search]:
    """Every float32 exact search by name."""
    return {
        "numpy": numpy_exact(softmax),
        "torch": torch_exact(softmax),
        "faiss IndexFlatIP": faiss_exact(softmax),
    }
