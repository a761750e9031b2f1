from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import HEADS
from logitsieve.index_builder import partition as partition_module
from logitsieve.index_builder.centroids import spherical_kmeans
from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import FitInputs
from logitsieve.index_builder.partition import COUNTED_ROWS, Partition, route
from tests.index_builder.clustered import make_exact, make_inputs
from tests.synthetic import make_softmax

WASTE = 3e-4


@pytest.fixture(scope="module")
def inputs() -> FitInputs:
    return make_inputs()[1]


def make_partition(inputs: FitInputs, clusters: int = 8, depth: int = 5) -> Partition:
    centroids = spherical_kmeans(inputs.sample, clusters, ScreenConfig(), seed=1)
    return Partition(inputs, centroids, depth, WASTE)


def test_pairs_count_every_label_of_every_context(inputs: FitInputs) -> None:
    partition = make_partition(inputs)
    pairs = partition.pairs
    cluster_N = route(inputs.train, partition.centroids_CD)
    counted = np.zeros((partition.clusters, inputs.vocab_size), int)
    np.add.at(counted, (np.repeat(cluster_N, 5), inputs.labels.ravel()), 1)
    found = np.zeros_like(counted)
    found[pairs.cluster, pairs.label] = pairs.hits
    np.testing.assert_array_equal(found, counted)
    np.testing.assert_array_equal(pairs.rows, np.bincount(cluster_N))


def test_counting_in_parts_changes_nothing(
    inputs: FitInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_partition(inputs).pairs
    monkeypatch.setattr(partition_module, "COUNTED_ROWS", 100)
    for array, again in zip(whole, make_partition(inputs).pairs, strict=True):
        np.testing.assert_array_equal(array, again)


def test_a_context_takes_two_bytes() -> None:
    rows = 3_000_000
    inputs = FitInputs(
        softmax=make_softmax(vocab_size=4, dim=1),
        train=Contexts([np.ones((rows, 1), np.float16)]),
        labels=np.zeros((rows, 1), np.uint8),
        heldout=Contexts([np.ones((1, 1), np.float32)]),
        heldout_labels=np.zeros((1, 1), np.uint8),
        sample=np.ones((1, 1), np.float32),
        sample_rows=np.array([0]),
    )
    tracemalloc.start()
    Partition(inputs, np.ones((1, 1), np.float32), 1, WASTE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    fixed = 32 * COUNTED_ROWS
    assert peak < 2 * rows + fixed


def test_clusters_without_contexts_are_dropped(inputs: FitInputs) -> None:
    centroids = spherical_kmeans(inputs.sample, 6, ScreenConfig(), seed=1)
    nowhere = -inputs.sample.mean(axis=0, keepdims=True) * 1e-3
    partition = Partition(inputs, np.vstack([nowhere, centroids]), 5, WASTE)
    assert partition.clusters == 6
    np.testing.assert_array_equal(partition.centroids_CD, centroids)


def test_lists_hold_the_most_frequent_labels_first(inputs: FitInputs) -> None:
    partition = make_partition(inputs)
    arrays = partition.arrays(partition.knapsack.select(30))
    pairs = partition.pairs
    hits = {
        (cluster, label): count
        for cluster, label, count in zip(pairs.cluster, pairs.label, pairs.hits, strict=True)
    }
    offsets = arrays["offsets"]
    for cluster in range(partition.clusters):
        ids = arrays["ids"][offsets[cluster] : offsets[cluster + 1]]
        counts = [hits[cluster, label] for label in ids]
        assert counts == sorted(counts, reverse=True)
        assert len(set(ids)) == len(ids)


def test_short_lists_get_the_most_frequent_labels(inputs: FitInputs) -> None:
    """Nothing fits a budget of 0, and an empty list could answer nothing."""
    partition = make_partition(inputs)
    arrays = partition.arrays(partition.knapsack.select(0))
    frequent = np.argsort(-np.bincount(inputs.labels.ravel()), kind="stable")[:5]
    assert (np.diff(arrays["offsets"]) == 5).all()
    np.testing.assert_array_equal(arrays["ids"].reshape(-1, 5), np.tile(frequent, (8, 1)))


def test_recall_rises_with_the_budget_up_to_all_that_was_seen(inputs: FitInputs) -> None:
    same = replace(inputs, heldout=inputs.train, heldout_labels=inputs.labels)
    partition = make_partition(same)
    recalls = [
        partition.heldout_hits(partition.knapsack.select(budget)).mean()
        for budget in (1, 3, 10, 20, 40, inputs.vocab_size)
    ]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1.0


def test_hits_and_candidates_are_those_of_the_served_screen() -> None:
    softmax, inputs = make_inputs()
    partition = make_partition(inputs, clusters=6)
    keep = partition.knapsack.select(20)
    exact = make_exact(softmax)
    head = HEADS["screen"].from_arrays(
        softmax, partition.arrays(keep), fallback=exact, threads=1, knobs={}
    )
    hidden = inputs.heldout.take(np.arange(inputs.heldout.rows))
    top = head.topk(hidden, 5)
    right = np.array(
        [
            len(np.intersect1d(*pair))
            for pair in zip(top.ids, inputs.heldout_labels[:, :5], strict=True)
        ]
    )
    np.testing.assert_array_equal(partition.heldout_hits(keep)[:, :5].sum(axis=1), right)
    trained = head.topk(inputs.sample, 5)
    assert partition.candidates(keep) == pytest.approx(trained.scanned.mean())
    missed = 5 - right
    expected = missed + WASTE * (top.scanned - right)
    assert partition.heldout_loss(keep) == pytest.approx(expected.mean())


def test_the_table_is_the_choice(inputs: FitInputs) -> None:
    partition = make_partition(inputs)
    keep = partition.knapsack.select(12)
    table = partition.table(keep)
    assert table.shape == (inputs.vocab_size, partition.clusters)
    np.testing.assert_array_equal(table.sum(axis=0), partition.sizes(keep))


def test_one_context_is_enough() -> None:
    one = np.ones((1, 4), np.float32)
    inputs = FitInputs(
        softmax=make_softmax(vocab_size=9, dim=4),
        train=Contexts([one]),
        labels=np.array([[3, 1]], np.uint16),
        heldout=Contexts([one]),
        heldout_labels=np.array([[3, 1]], np.uint16),
        sample=one,
        sample_rows=np.array([0]),
    )
    partition = make_partition(inputs, depth=2)
    arrays = partition.arrays(partition.knapsack.select(9))
    assert arrays["ids"].tolist() == [1, 3]
    assert arrays["offsets"].tolist() == [0, 2]


@pytest.mark.parametrize("guard", [0.1, 0.5])
def test_a_guard_leaves_a_share_of_every_cluster_to_the_fallback(guard: float) -> None:
    softmax, inputs = make_inputs()
    centroids = spherical_kmeans(inputs.sample, 6, ScreenConfig(), seed=1)
    partition = Partition(inputs, centroids, 5, WASTE, guard)
    arrays = partition.arrays(partition.knapsack.select(20))
    assert arrays["reaches"].min() == 1
    screen = HEADS["screen"].from_arrays(
        softmax,
        arrays,
        fallback=make_exact(softmax),
        threads=1,
        knobs={"escalate": partition.guarded},
    )
    left = screen.topk(inputs.sample, 1).exact
    cluster = route(inputs.train, centroids)
    for number in range(6):
        assert left[cluster == number].mean() == pytest.approx(guard, abs=0.01)
    heldout = screen.topk(inputs.heldout.sample(inputs.heldout.rows), 1).exact
    np.testing.assert_array_equal(heldout, partition.heldout_cosines < partition.guarded)
