"""Small seeded softmaxes and the arrays of every head over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from logitsieve.heads import HEADS, Head, Softmax
from logitsieve.kernels.lsh import bucket_tables


def make_softmax(
    vocab_size: int = 300, dim: int = 24, seed: int = 0, scale: float = 1.0
) -> Softmax:
    """Gaussian rows whose norms fall with the id, as those of real vocabularies do."""
    random = np.random.default_rng(seed)
    weight = random.standard_normal((vocab_size, dim)) * scale
    weight *= np.linspace(1.5, 0.5, vocab_size)[:, None]
    bias = random.standard_normal(vocab_size) * scale
    return Softmax(weight.astype(np.float32), bias.astype(np.float32))


def make_hidden(rows: int, dim: int = 24, seed: int = 1, scale: float = 1.0) -> np.ndarray:
    """[rows, dim] float32 contexts."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, dim)) * scale).astype(np.float32)


def screen_arrays(softmax: Softmax, clusters: int = 6, seed: int = 2) -> dict[str, np.ndarray]:
    """Random centroids with random candidate lists of 20 to 60 rows."""
    random = np.random.default_rng(seed)
    most = min(60, softmax.vocab_size)
    lists = [
        random.permutation(softmax.vocab_size)[: random.integers(min(20, most), most + 1)]
        for _ in range(clusters)
    ]
    return {
        "centroids": random.standard_normal((clusters, softmax.dim)).astype(np.float32),
        "offsets": np.cumsum([0, *map(len, lists)]).astype(np.int32),
        "ids": np.concatenate(lists).astype(np.int32),
    }


def lsh_arrays(
    softmax: Softmax, tables: int = 6, bits: int = 3, seed: int = 6
) -> dict[str, np.ndarray]:
    """Random planes, and ids thrown into buckets at random."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (softmax.vocab_size, tables)).astype(np.int32)
    offsets, ids = bucket_tables(codes, bits)
    return {
        "planes": random.standard_normal((tables, bits, softmax.dim)).astype(np.float32),
        "shifts": random.standard_normal(tables * bits).astype(np.float32),
        "offsets": offsets,
        "ids": ids,
    }


ARRAYS: dict[str, Callable[[Softmax], dict[str, np.ndarray]]] = {
    "screen": screen_arrays,
    "lsh": lsh_arrays,
}


def make_head(name: str, softmax: Softmax, threads: int = 1, **knobs: float) -> Head:
    """The head of that name with the exact head behind it."""
    exact = HEADS["exact"].from_arrays(softmax, {}, fallback=None, threads=threads, knobs={})
    if name == "exact":
        return exact.with_knobs(**knobs)
    arrays = ARRAYS[name](softmax)
    return HEADS[name].from_arrays(softmax, arrays, fallback=exact, threads=threads, knobs=knobs)
