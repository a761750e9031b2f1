"""Small seeded softmaxes and the arrays of every head over them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.heads import HEADS, Head, SketchHead, Softmax
from logitsieve.index import HeadEntry, write_index
from logitsieve.index_builder.fit.sketch import (
    CONTEXT_RIDGE,
    RIDGE,
    balanced,
    code,
    rotate,
    rotated_at_random,
    rounded,
    row_moments,
    second_moments,
)
from logitsieve.index_builder.fit.svd import preview_arrays
from logitsieve.kernels.retrieval.hash_tables import bucket_tables

Arrays = dict[str, np.ndarray]  # of a part, by their names


def make_softmax(vocab_size: int = 300, dim: int = 24, seed: int = 0, scale: float = 1) -> Softmax:
    """Gaussian rows whose norms fall with the id, as those of real vocabularies do."""
    random = np.random.default_rng(seed)
    weight = random.standard_normal((vocab_size, dim)) * scale
    weight *= np.linspace(1.5, 0.5, vocab_size)[:, None]
    bias = random.standard_normal(vocab_size) * scale
    return Softmax(weight.astype(np.float32), bias.astype(np.float32))


def decaying(
    vocab_size: int, dim: int, length: float = 1 / 8, rows: int = 40
) -> tuple[Softmax, np.ndarray]:
    """Rows and contexts whose coordinates fall off, as those of trained models do."""
    random = np.random.default_rng(0)
    scales = np.exp(-np.arange(dim) / (dim * length))
    weight = random.standard_normal((vocab_size, dim)) * scales
    hidden_states = random.standard_normal((rows, dim)) * scales * 5
    bias = random.standard_normal(vocab_size)
    return Softmax(weight.astype(np.float32), bias.astype(np.float32)), hidden_states.astype(
        np.float32
    )


def matrix_of(kind: str, vocab_size: int, dim: int) -> np.ndarray:
    """W of one of many kinds."""
    weight = np.random.default_rng(5).standard_normal((vocab_size, dim))
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "gaussian": lambda: weight,
        "decaying": lambda: weight * np.exp(-8 * np.arange(dim) / dim),
        "denormal": lambda: weight * 1e-40,
        "hardly normal": lambda: weight * 1e-36,
        "both": lambda: weight * np.geomspace(1e-44, 1e3, vocab_size)[:, None],
        "large": lambda: weight * 1e30,
        "rank one": lambda: weight[:, :1] * weight[:1],
        "rank two": lambda: weight[:, :1] * weight[:1] + weight[:, -1:] * weight[-1:],
        "equal rows": lambda: np.repeat(weight[:1], vocab_size, axis=0),
        "whole numbers": lambda: np.rint(3 * weight),
        "one column": lambda: weight * (np.arange(dim) == 2),
        "far from zero": lambda: weight + 1e4,
        "zeros": lambda: np.zeros_like(weight),
    }
    return kinds[kind]().astype(np.float32)


def make_hidden(rows: int, dim: int = 24, seed: int = 1, scale: float = 1.0) -> np.ndarray:
    """[rows, dim] float32 contexts."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, dim)) * scale).astype(np.float32)


def screen_arrays(softmax: Softmax, clusters: int = 6, seed: int = 2, most: int = 60) -> Arrays:
    """Random centroids with random candidate lists of 20 to `most` rows."""
    random = np.random.default_rng(seed)
    most = min(most, softmax.vocab_size)
    lists = [
        random.permutation(softmax.vocab_size)[: random.integers(min(20, most), most + 1)]
        for _ in range(clusters)
    ]
    return {
        "centroids": random.standard_normal((clusters, softmax.dim)).astype(np.float32),
        "offsets": np.cumsum([0, *map(len, lists)]).astype(np.int32),
        "ids": np.concatenate(lists).astype(np.int32),
    }


def lsh_arrays(softmax: Softmax, tables: int = 6, bits: int = 3, seed: int = 6) -> Arrays:
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


def _finite(softmax: Softmax) -> Softmax:
    return Softmax(np.nan_to_num(softmax.weight), np.nan_to_num(softmax.bias))


def svd_arrays(softmax: Softmax) -> Arrays:
    """A third of the dimensions."""
    return preview_arrays(_finite(softmax), max(1, softmax.dim // 3))


def frequency_arrays(softmax: Softmax) -> Arrays:
    """Ids in a random order."""
    order = np.random.default_rng(4).permutation(softmax.vocab_size)
    return {"ids": order.astype(np.int32)}


def rotated(softmax: Softmax, hidden_states: np.ndarray) -> np.ndarray:
    """The builder's change of coordinates for contexts like `hidden_states`."""
    return balanced(row_moments(softmax, RIDGE), second_moments(hidden_states, CONTEXT_RIDGE))


def basis_of(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """U of a sketch, [D, D]."""
    basis: np.ndarray = arrays["directions"].astype(np.float64)
    return basis


def sketch_arrays(softmax: Softmax, basis: np.ndarray, first: int = 16, seed: int = 0) -> Arrays:
    """The part `sketch` with so many coordinates in eight bits."""
    return code(rotate(softmax, rounded(rotated_at_random(basis, first, seed))), first)


def sketch_head(softmax: Softmax, arrays: Arrays, **options: Any) -> SketchHead:
    """The head `sketch` with proofs."""
    return SketchHead(softmax, arrays, knobs={"max_error": 0.0}, **options)


def usual_sketch(softmax: Softmax) -> Arrays:
    finite = _finite(softmax)
    return sketch_arrays(finite, rotated(finite, make_hidden(64, softmax.dim)))


ARRAYS: dict[str, Callable[[Softmax], Arrays]] = {
    "sketch": usual_sketch,
    "screen": screen_arrays,
    "svd": svd_arrays,
    "lsh": lsh_arrays,
    "frequency": frequency_arrays,
}


def make_head(
    name: str, softmax: Softmax, threads: Any = 1, arrays: Any = None, **knobs: float
) -> Head:
    """The head of that name, over these arrays or random ones, with the full head behind it."""
    full = HEADS["full"].from_arrays(softmax, {}, fallback=None, threads=threads, knobs={})
    if name == "full":
        return full.with_knobs(**knobs)
    arrays = arrays or ARRAYS[name](softmax)
    return HEADS[name].from_arrays(softmax, arrays, fallback=full, threads=threads, knobs=knobs)


def write_heads(out: Path, softmax: Softmax, *names: str, **more: Any) -> Path:
    """Write an index of the full head and of these, the first of which is the default one."""
    parts, heads = dict[str, Arrays](), {"full": HeadEntry()}
    knobs = {"screen": {"probes": 1.0}, "sketch": {} if "parts" in more else {"max_error": 0.0}}
    for name in names:
        part = HEADS[name].part
        assert part is not None
        parts[part.name] = ARRAYS[name](softmax)
        heads[name] = HeadEntry(part.name, knobs.get(name, {}))
    default = names[0] if names else "full"
    usual: dict[str, Any] = {"parts": parts, "heads": heads, "default_head": default}
    return write_index(out, softmax=softmax, **usual | more)
