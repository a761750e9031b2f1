"""Build a small-world graph over the rows of W with faiss.

Zhang et al. 2018 (FGD), section 3.2: rows [w; b] are extended to equal norms. If norms differ much,
a walk by the angle to [w; b] meets more of the best rows: the cheaper of both graphs is stored.

The most frequent words come first: their links reach far, and a walk ends sooner.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.heads import HEADS, Softmax
from logitsieve.heads.graph import GraphHead, one_thread, width
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fitting import (
    TARGET,
    FitInputs,
    FitResult,
    heldout_sample,
    label_counts,
)
from logitsieve.index_builder.reduction import augmented

TRIED = tuple(8 << step for step in range(10))  # values of ef
PORTION = 10  # rows added at once: a tenth of the graph at most, for faiss shuffles them


def fit_graph(inputs: FitInputs) -> FitResult:
    hidden_HD, labels_HK = heldout_sample(inputs)
    counts_V = label_counts(inputs)
    needed, graphs = [], []
    for number, unit_rows in enumerate(REDUCTIONS, start=1):
        graphs.append(graph_arrays(inputs.softmax, unit_rows, inputs.config, counts_V))
        ef, share = least_ef(inputs.softmax, graphs[-1], hidden_HD, labels_HK)
        needed.append((ef, -share))
        inputs.progress("fit graph", number, len(REDUCTIONS))
    best = needed.index(min(needed))
    summary = {"links": inputs.config.graph_links, "by_angle": best}
    return FitResult(graphs[best], summary, {"ef": needed[best][0]})


def by_angle(softmax: Softmax) -> Float32:
    """Return [V, D+2] unit rows in the direction of [w; b; 0]; zero rows stay zero."""
    rows = augmented(softmax)
    rows[:, -1] = 0.0
    norms = np.sqrt(np.einsum("vd,vd->v", rows, rows, dtype=np.float64))
    np.divide(rows, np.where(norms > 0, norms, 1)[:, None], out=rows, casting="same_kind")
    return rows


REDUCTIONS: tuple[Callable[[Softmax], Float32], ...] = (augmented, by_angle)


def graph_arrays(
    softmax: Softmax, unit_rows: Callable[[Softmax], Float32], config: BuildConfig, counts_V: Int64
) -> dict[str, np.ndarray]:
    """Return the `graph` part, faiss's bytes; one thread links the rows, the most counted first."""
    import faiss

    order_V = np.argsort(-counts_V, kind="stable")
    padded_VE = np.zeros((softmax.vocab_size, width(softmax.dim)), np.float32)
    padded_VE[:, : softmax.dim + 2] = unit_rows(softmax)[order_V]
    eight_bits: Any = faiss.ScalarQuantizer.QT_8bit  # faiss's types name another constructor
    links = config.graph_links
    index = faiss.IndexHNSWSQ(padded_VE.shape[1], eight_bits, links, faiss.METRIC_L2)
    index.hnsw.efConstruction = config.graph_build_ef
    with one_thread():
        index.train(padded_VE)
        while index.ntotal < len(padded_VE):
            start = index.ntotal
            index.add(padded_VE[start : start + max(1, start // PORTION)])
    index.permute_entries(np.argsort(order_V))
    return {"graph": faiss.serialize_index(index)}


def least_ef(
    softmax: Softmax, arrays: dict[str, np.ndarray], hidden_HD: Float32, labels_HK: Int64
) -> tuple[int, float]:
    """Return the least ef tried that finds TARGET of the labels, or V, and the share found."""
    exact = HEADS["exact"].from_arrays(softmax, {}, fallback=None, threads=1, knobs={})
    head = GraphHead.from_arrays(softmax, arrays, fallback=exact, threads=1, knobs={})
    for ef in TRIED:
        offsets, ids = head.with_knobs(ef=ef).select(hidden_HD, 1)
        owners = np.repeat(np.arange(len(hidden_HD)), np.diff(offsets))
        met = owners * softmax.vocab_size + ids
        wanted_HK = np.arange(len(hidden_HD))[:, None] * softmax.vocab_size + labels_HK
        hits_HK = np.isin(wanted_HK, met)
        share = min(hits_HK[:, 0].mean(), hits_HK.mean())
        if share >= TARGET or ef >= softmax.vocab_size:
            break
    return min(ef, softmax.vocab_size), float(share)
