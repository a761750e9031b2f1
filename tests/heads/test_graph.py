import importlib.util
from importlib.machinery import ModuleSpec
from typing import Any

import faiss
import numpy as np
import pytest

from logitsieve.api.errors import MissingExtra
from logitsieve.heads import ExactHead
from logitsieve.heads import graph as graph_module
from logitsieve.heads.graph import one_thread, queries, width
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.graph import REDUCTIONS, graph_arrays
from tests.refusals import refused
from tests.synthetic import graph_arrays as few_links
from tests.synthetic import make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
COUNTS = np.arange(300)[::-1]
ARRAYS = [graph_arrays(SOFTMAX, rows, BuildConfig(), COUNTS) for rows in REDUCTIONS]


def make_graph(arrays: dict[str, np.ndarray], ef: int) -> Any:
    return make_head("graph", SOFTMAX, arrays=arrays, ef=ef)


@pytest.mark.parametrize("arrays", ARRAYS)
def test_no_more_than_ef_rows_are_looked_at(arrays: dict[str, np.ndarray]) -> None:
    assert (make_graph(arrays, 20).topk(HIDDEN, 5).scanned == 20).all()
    every, exact = make_graph(arrays, 300).topk(HIDDEN, 5), ExactHead(SOFTMAX).topk(HIDDEN, 5)
    np.testing.assert_array_equal(every.ids, exact.ids)
    assert make_graph(arrays, 4).topk(HIDDEN, 5).exact.all(), "fewer than k: the fallback"


def test_the_graph_is_shared_and_threads_are_put_back() -> None:
    head = make_graph(ARRAYS[0], 20)
    assert head.with_knobs(ef=40)._graph is head._graph
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(2)
        with one_thread():
            assert faiss.omp_get_max_threads() == 1
        make_graph(ARRAYS[0], 20).topk(HIDDEN, 5)
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)


def test_queries_are_unit_vectors_at_every_scale() -> None:
    for scale in (0.0, 1e-40, 1e-13, 1.0, 1e10, 1e30):
        wide = queries((HIDDEN * np.float64(scale)).astype(np.float32))
        assert wide.shape == (70, width(24)) == (70, 32)
        np.testing.assert_allclose(np.linalg.norm(wide, axis=1), 1, rtol=1e-5)
        assert (wide[:, 25:] == 0).all()


@pytest.mark.parametrize(
    "graph",
    [
        np.zeros(100, np.uint8),
        faiss.serialize_index(faiss.IndexFlatL2(32)),
        faiss.serialize_index(faiss.IndexHNSWFlat(32, 4)),
        few_links(make_softmax(vocab_size=200))["graph"],
        few_links(make_softmax(dim=40))["graph"],
    ],
)
def test_other_bytes_are_refused(graph: np.ndarray) -> None:
    with refused("arrays"):
        make_graph({"graph": graph}, 20)


def test_without_faiss_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "faiss" else find(name, package)

    monkeypatch.setattr("logitsieve.utils.environment.find_spec", without)
    graph_module._faiss.cache_clear()
    with pytest.raises(MissingExtra, match=r"logitsieve\[faiss\]"):
        make_graph(ARRAYS[0], 20)
