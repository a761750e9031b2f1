from dataclasses import replace

import faiss
import numpy as np

from logitsieve.heads import Softmax
from logitsieve.heads.graph import queries
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.graph import (
    REDUCTIONS,
    by_angle,
    fit_graph,
    graph_arrays,
    least_ef,
)
from logitsieve.index_builder.fitting import TARGET, heldout_sample, label_counts
from tests.index_builder.clustered import make_inputs
from tests.synthetic import make_head, make_hidden, make_softmax

CONFIG = BuildConfig(graph_links=8, graph_build_ef=40)


def test_rows_by_angle_are_unit_rows_or_zero() -> None:
    softmax = make_softmax()
    softmax.weight[3], softmax.bias[3] = 0, 0
    rows = by_angle(softmax)
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(np.delete(norms, 3), 1, rtol=1e-5)
    assert norms[3] == 0
    assert (rows[:, -1] == 0).all()
    turned = rows[0, :-2] * softmax.bias[0]
    np.testing.assert_allclose(turned, softmax.weight[0] * rows[0, -2], rtol=1e-5)


def test_equal_inputs_give_equal_bytes_whatever_the_threads() -> None:
    softmax = make_softmax(vocab_size=500)
    before = faiss.omp_get_max_threads()
    try:
        found = []
        for threads in (1, 2):
            faiss.omp_set_num_threads(threads)
            found.append(graph_arrays(softmax, by_angle, CONFIG, np.arange(500))["graph"])
    finally:
        faiss.omp_set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])


def test_words_keep_their_ids_and_the_most_counted_are_linked_first() -> None:
    softmax = make_softmax(vocab_size=500)
    counts = np.random.default_rng(0).permutation(500)
    order = np.argsort(-counts)
    turned = Softmax(softmax.weight[order], softmax.bias[order])
    graph = graph_arrays(softmax, by_angle, CONFIG, counts)["graph"]
    in_order = graph_arrays(turned, by_angle, CONFIG, np.arange(500)[::-1])["graph"]
    hidden = queries(make_hidden(50))
    found = (faiss.deserialize_index(each).search(hidden, 20) for each in (graph, in_order))
    ids, places = (each[1] for each in found)
    np.testing.assert_array_equal(ids, order[places])


def test_rows_take_a_byte_a_dimension() -> None:
    counts = np.ones(2000, np.int64)
    graph = graph_arrays(make_softmax(2000, 100), by_angle, CONFIG, counts)["graph"]
    assert graph.nbytes < 2000 * (112 + 8 * CONFIG.graph_links + 60)


def test_the_graph_that_needs_less_is_kept_and_meets_the_target() -> None:
    softmax, inputs = make_inputs(vocab_size=600)
    made = fit_graph(replace(inputs, config=CONFIG))
    graphs = [graph_arrays(softmax, rows, CONFIG, label_counts(inputs)) for rows in REDUCTIONS]
    found = [least_ef(softmax, graph, *heldout_sample(inputs)) for graph in graphs]
    best = min(range(2), key=lambda number: (found[number][0], -found[number][1]))
    assert made.summary == {"links": 8, "by_angle": best}
    assert made.knobs == {"ef": found[best][0]}
    np.testing.assert_array_equal(made.arrays["graph"], graphs[best]["graph"])
    hidden, labels = heldout_sample(inputs)
    head = make_head("graph", softmax, arrays=made.arrays, **made.knobs)
    assert (head.topk(hidden, 1).ids[:, 0] == labels[:, 0]).mean() >= TARGET


def test_a_graph_that_misses_the_target_keeps_all_rows_in_view() -> None:
    """Equal rows with two links each: a walk that stops among some never meets the others."""
    equal = Softmax(np.ones((50, 16), np.float32), np.zeros(50, np.float32))
    _, inputs = make_inputs(vocab_size=50)
    rows = len(inputs.heldout_labels)
    labels = np.arange(5 * rows, dtype=np.uint16).reshape(rows, 5) % 50
    inputs = replace(inputs, softmax=equal, heldout_labels=labels)
    made = fit_graph(replace(inputs, config=BuildConfig(graph_links=2, graph_build_ef=1)))
    assert made.knobs == {"ef": 50}
    ef, share = least_ef(equal, dict(made.arrays), *heldout_sample(inputs))
    assert ef == 50
    assert share < TARGET
