"""A graph over the rows of W, walked towards the query; needs faiss.

Zhang, Liu, Wang, Gao, He 2018, Navigating with Graph Representations for Fast and Scalable Decoding
of Neural Language Models (FGD): inner products become distances, and HNSW finds the nearest rows.

Time O(ef M D) a row and about log V with M links; memory V (D + 8 M) bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32, Int64, offsets_of
from logitsieve.heads._base.head import Knob, Softmax, by_knob
from logitsieve.heads._base.kernel_head import SelectingHead
from logitsieve.heads._base.spec import PartSpec, TensorSpec
from logitsieve.utils.environment import require

VECTOR_MULTIPLE = 16  # faiss vectorises such sizes


class GraphHead(SelectingHead):
    """Looks at the `ef` nearest rows on the walk."""

    name = "graph"
    part = PartSpec("graph", {"graph": TensorSpec("uint8", ("G",), "codes")}, foreign=True)
    knob_table = by_knob(
        ef=Knob(
            help="rows kept in view by the walk, and evaluated: precision for time",
            default=64,
            tried=(8, 16, 32, 64, 128, 256, 512),
        )
    )
    limits = by_knob(ef=lambda _, softmax: softmax.vocab_size)

    def _prepare(self) -> None:
        super()._prepare()
        self._graph = _read(self._arrays["graph"], self._softmax)

    def _apply_knobs(self) -> None:
        self._search = _faiss().SearchParametersHNSW(efSearch=self.knobs["ef"])

    def select(self, hidden: Float32, k: int) -> tuple[Int64, Int32]:
        with one_thread():
            ef = int(self.knobs["ef"])
            _, ids = self._graph.search(queries(hidden), ef, params=self._search)
        met = ids >= 0
        return offsets_of(met.sum(axis=1)), ids[met].astype(np.int32)


def width(dim: int) -> int:
    return -(-(dim + 2) // VECTOR_MULTIPLE) * VECTOR_MULTIPLE


def queries(hidden: Float32) -> Float32:
    """Return [B, E] unit vectors in the direction of [h; 1; 0]; not finite if hidden is not."""
    rows, dim = hidden.shape
    wide = np.zeros((rows, width(dim)), np.float32)
    wide[:, :dim] = hidden
    wide[:, dim] = 1.0
    with np.errstate(invalid="ignore"):
        wide /= np.abs(wide).max(axis=1, keepdims=True)  # squares of larger ones could overflow
        wide /= np.sqrt(np.einsum("be,be->b", wide, wide))[:, None]
    return wide


@contextmanager
def one_thread() -> Iterator[None]:
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _read(graph: np.ndarray, softmax: Softmax) -> Any:
    faiss = _faiss()
    try:
        index = faiss.deserialize_index(graph)
    except RuntimeError as error:
        raise InvalidRequest("arrays", f"graph: {error}", "what faiss serialized") from error
    needed = (softmax.vocab_size, width(softmax.dim))
    if not isinstance(index, faiss.IndexHNSW) or (index.ntotal, index.d) != needed:
        got = f"{type(index).__name__} {[index.ntotal, index.d]}"
        raise InvalidRequest("arrays", got, f"IndexHNSW {list(needed)}")
    return index


@cache
def _faiss() -> Any:
    require("faiss", "faiss")
    return import_module("faiss")
