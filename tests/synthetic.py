"""Small seeded softmaxes and the arrays of every head over them; faiss only where one needs it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.heads import HEADS, Head, SketchHead, Softmax
from logitsieve.index import HeadEntry, write_index
from logitsieve.index.sketch_rows import spectral_norms
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit import sketch
from logitsieve.index_builder.fit.levels import code_levels, turned_at_random
from logitsieve.index_builder.fit.rotated_rows import factored, square, turn
from logitsieve.index_builder.fit.sketch import Widths, code, row_moments, second_moments
from logitsieve.index_builder.fit.svd import preview_arrays
from logitsieve.index_builder.reduction import augmented
from logitsieve.kernels.retrieval.hash_tables import bucket_tables
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA

Arrays = dict[str, np.ndarray]  # of a part, by their names
STEEP = Widths(16, 64)  # of a sketch without levels


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
    hidden = random.standard_normal((rows, dim)) * scales * 5
    bias = random.standard_normal(vocab_size)
    return Softmax(weight.astype(np.float32), bias.astype(np.float32)), hidden.astype(np.float32)


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


def ivf_arrays(softmax: Softmax) -> Arrays:
    from logitsieve.index_builder.fit.ivf import cluster_arrays

    return cluster_arrays(_finite(softmax), 10, iterations=4, seed=0)


def graph_arrays(softmax: Softmax) -> Arrays:
    """Few links, so that some rows are not found."""
    from logitsieve.index_builder.fit.graph import graph_arrays as build_graph

    config = BuildConfig(graph_links=4, graph_build_ef=8)
    counts = np.arange(softmax.vocab_size)
    return build_graph(_finite(softmax), augmented, config, counts)


def frequency_arrays(softmax: Softmax) -> Arrays:
    """Ids in a random order."""
    order = np.random.default_rng(4).permutation(softmax.vocab_size)
    return {"ids": order.astype(np.int32)}


def rotated(softmax: Softmax, hidden: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The builder's change to so many coordinates, and its stretch, for contexts like `hidden`."""
    moments = row_moments(softmax), second_moments(hidden)
    return sketch.narrow_rotation(*moments, count)


def encode(
    softmax: Softmax,
    rotation: np.ndarray,
    widths: Widths,
    order: np.ndarray | None = None,
    stretch: np.ndarray | None = None,
) -> Arrays:
    """The part `sketch` without levels, in an order of ids or that of W, with its norms."""
    order = np.arange(softmax.vocab_size, dtype=np.int32) if order is None else order
    arrays = code(softmax, turn(softmax, factored(rotation, stretch)), widths, order)
    return arrays | {"norms": spectral_norms(softmax, arrays, lambda rows: None)}


def basis_of(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """L U of a sketch [P, D], each coordinate over its stretch; with levels U alone."""
    if "triangle" not in arrays:
        return arrays["directions"].astype(np.float64)
    triangle, directions = arrays["triangle"].astype(np.float64), arrays["directions"]
    basis: np.ndarray = triangle @ (directions / arrays["stretch"].astype(np.float64))
    return basis


def coded_rows(arrays: Mapping[str, np.ndarray], fine: bool) -> tuple[np.ndarray, np.ndarray]:
    """(s_i q_i [V, M], s_i [V]) of either coding without levels, in the order of the ids."""
    M = min(len(arrays["directions"]), arrays["fine"].shape[1] - EXTRA)
    if fine:
        codes = arrays["fine"][:, :M].astype(np.float64) - 128
        scales = arrays["fine"][:, -EXTRA:].copy().view(np.float32)[:, 0]
        return codes * scales[:, None], scales.astype(np.float64)
    coarse, order = arrays["coarse"], arrays["order"]
    F = coarse.shape[1] // LANES - COARSE_EXTRA
    quads = coarse[:, : LANES * F].reshape(-1, F // 4, LANES, 4).transpose(0, 2, 1, 3)
    extras = coarse[:, LANES * F :].copy().view(np.float32).reshape(-1, 3, LANES)
    codes, scales = quads.reshape(-1, F)[: len(order), :M], extras[:, 0].ravel()[: len(order)]
    ordered = (codes.astype(np.float64) - 128) * scales[:, None]
    back = np.argsort(order)
    return ordered[back], scales[back].astype(np.float64)


def sketch_arrays(
    softmax: Softmax,
    rotation: np.ndarray,
    widths: Widths | int = 16,
    order: np.ndarray | None = None,
    stretch: np.ndarray | None = None,
    seed: int = 0,
) -> Arrays:
    """The part `sketch`: of these widths, or with levels and so many coordinates in eight bits.

    There are no levels where there are no other coordinates, or fewer than of a context.
    """
    if isinstance(widths, int) and widths < len(rotation) == softmax.dim:
        return code_levels(turn(softmax, square(turned_at_random(rotation, widths, seed))), widths)
    widths = STEEP if isinstance(widths, int) else widths
    return encode(softmax, rotation, widths, order, stretch)


def sketch_head(softmax: Softmax, arrays: Arrays, **options: Any) -> SketchHead:
    """The head `sketch` with proofs."""
    return SketchHead(softmax, arrays, knobs={"max_error": 0.0}, **options)


def usual_sketch(softmax: Softmax, widths: Widths | int = STEEP) -> Arrays:
    finite = _finite(softmax)
    rotation, _ = rotated(finite, make_hidden(64, softmax.dim), softmax.dim)
    return sketch_arrays(finite, rotation, widths)


ARRAYS: dict[str, Callable[[Softmax], Arrays]] = {
    "sketch": usual_sketch,
    "screen": screen_arrays,
    "svd": svd_arrays,
    "lsh": lsh_arrays,
    "graph": graph_arrays,
    "ivf": ivf_arrays,
    "frequency": frequency_arrays,
}


def make_head(
    name: str, softmax: Softmax, threads: Any = 1, arrays: Any = None, **knobs: float
) -> Head:
    """The head of that name, over these arrays or random ones, with the exact head behind it."""
    exact = HEADS["exact"].from_arrays(softmax, {}, fallback=None, threads=threads, knobs={})
    if name == "exact":
        return exact.with_knobs(**knobs)
    arrays = arrays or ARRAYS[name](softmax)
    return HEADS[name].from_arrays(softmax, arrays, fallback=exact, threads=threads, knobs=knobs)


def make_graded(softmax: Softmax, threads: Any = 1, **knobs: float) -> Head:
    """The head `sketch` over a sketch with levels, so that it has grades."""
    return make_head("sketch", softmax, threads, usual_sketch(softmax, 16), **knobs)


def write_heads(out: Path, softmax: Softmax, *names: str, **more: Any) -> Path:
    """Write an index of the exact head and of these, the first of which is the default one."""
    parts, heads = dict[str, Arrays](), {"exact": HeadEntry()}
    for name in names:
        part = HEADS[name].part
        assert part is not None
        parts[part.name] = ARRAYS[name](softmax)
        heads[name] = HeadEntry(part.name, {"probes": 1.0} if name == "screen" else {})
    default = names[0] if names else "exact"
    usual: dict[str, Any] = {"parts": parts, "heads": heads, "default_head": default}
    return write_index(out, softmax=softmax, **usual | more)
