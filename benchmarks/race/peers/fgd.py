"""FGD: a graph over the rows of W, walked by faiss's HNSW towards the query.

Zhang, Liu, Wang, Gao, He 2018, Navigating with Graph Representations for Fast and Scalable Decoding
of Neural Language Models, section 3.2: rows [w; b] are extended to equal norms, so that the largest
inner product is the smallest distance. If norms differ much, a walk by the angle to [w; b] meets
more of the best rows. The most frequent words come first: their links reach far.
Shape letters: B batch rows, D hidden size, E = D + 2 padded, K best words, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np

from logitsieve.api.results import Float32, Int32, Int64, offsets_of
from logitsieve.heads import FullHead, Softmax
from logitsieve.heads._base.head import Knob, by_knob
from logitsieve.heads._base.kernel_head import SelectingHead
from logitsieve.index_builder.fitting import DEPTH, TARGET
from logitsieve.index_builder.reduction import augmented

LINKS, BUILD_EF = 16, 200  # M and efConstruction
TRIED = tuple(8 << step for step in range(10))  # values of ef
PORTION = 10  # rows added at once: a tenth of the graph at most, for faiss shuffles them
VECTOR_MULTIPLE = 16  # faiss vectorises such sizes


class GraphHead(SelectingHead):
    """Looks at the `ef` nearest rows on the walk; its array is what faiss serialized."""

    name = "graph"
    knob_table = by_knob(ef=Knob(help="rows kept in view", default=64, tried=TRIED[:7]))
    limits = by_knob(ef=lambda _, softmax: softmax.vocab_size)

    def _prepare(self) -> None:
        super()._prepare()
        self._graph: Any = faiss.deserialize_index(self._arrays["graph"])

    def _apply_knobs(self) -> None:
        untyped: Any = faiss
        self._search = untyped.SearchParametersHNSW(efSearch=int(self.knobs["ef"]))

    def select(self, hidden_states: Float32, k: int) -> tuple[Int64, Int32]:
        """See `ListingHead`."""
        ef = int(self.knobs["ef"])
        with one_thread():
            _, ids = self._graph.search(queries(hidden_states), ef, params=self._search)
        met = ids >= 0
        return offsets_of(met.sum(axis=1)), ids[met].astype(np.int32)


def queries(hidden_BD: Float32) -> Float32:
    """Unit vectors [B, E] in the direction of [h; 1; 0]."""
    wide_BE = np.zeros((len(hidden_BD), width(hidden_BD.shape[1])), np.float32)
    wide_BE[:, : hidden_BD.shape[1]] = hidden_BD
    wide_BE[:, hidden_BD.shape[1]] = 1
    wide_BE /= np.linalg.norm(wide_BE, axis=1, keepdims=True)
    return wide_BE


def width(dim: int) -> int:
    return -(-(dim + 2) // VECTOR_MULTIPLE) * VECTOR_MULTIPLE


@contextmanager
def one_thread() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def by_angle(softmax: Softmax) -> Float32:
    """Unit rows [V, D + 2] in the direction of [w; b; 0]; zero rows stay zero."""
    rows = augmented(softmax)
    rows[:, -1] = 0
    norms_V = np.linalg.norm(rows.astype(np.float64), axis=1)
    return (rows / np.where(norms_V > 0, norms_V, 1)[:, None]).astype(np.float32)


def graph_arrays(
    softmax: Softmax,
    best_ids: np.ndarray,
    unit_rows: Callable[[Softmax], Float32] = augmented,
    links: int = LINKS,
) -> dict[str, np.ndarray]:
    """The array of a `GraphHead`; one thread links the rows, the most frequent `best_ids` first."""
    counts_V = np.bincount(best_ids.ravel(), minlength=softmax.vocab_size)
    order_V = np.argsort(-counts_V, kind="stable")
    padded_VE = np.zeros((softmax.vocab_size, width(softmax.dim)), np.float32)
    padded_VE[:, : softmax.dim + 2] = unit_rows(softmax)[order_V]
    eight_bits: Any = faiss.ScalarQuantizer.QT_8bit  # faiss's types name another constructor
    index = faiss.IndexHNSWSQ(padded_VE.shape[1], eight_bits, links, faiss.METRIC_L2)
    index.hnsw.efConstruction = BUILD_EF
    with one_thread():
        index.train(padded_VE)
        while index.ntotal < len(padded_VE):
            start = index.ntotal
            index.add(padded_VE[start : start + max(1, start // PORTION)])
    index.permute_entries(np.argsort(order_V))
    return {"graph": faiss.serialize_index(index)}


def fitted_head(softmax: Softmax, best_ids: np.ndarray, heldout_BD: Float32) -> GraphHead:
    """The graph of both kinds that finds TARGET of the best words with the smaller ef, at that."""
    full = FullHead(softmax)
    best_BK = full.topk(heldout_BD, DEPTH).ids
    fits = []
    for unit_rows in (augmented, by_angle):
        head = GraphHead(softmax, graph_arrays(softmax, best_ids, unit_rows), fallback=full)
        for ef in TRIED:
            head = head.with_knobs(ef=ef)
            found_BK = head.topk(heldout_BD, DEPTH).ids
            hits_BK = (best_BK[:, :, None] == found_BK[:, None]).any(axis=2)
            share = min(hits_BK[:, 0].mean(), hits_BK.mean())
            if share >= TARGET or ef >= softmax.vocab_size:
                break
        fits.append((ef, -share, head))
    return min(fits, key=lambda fit: fit[:2])[2]
