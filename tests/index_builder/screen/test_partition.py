import tracemalloc
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.index_builder.config import BuildConfig, ScreenConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import FitInputs
from logitsieve.index_builder.screen import partition as partitions
from logitsieve.index_builder.screen.partition import ROUNDING, Knapsack, Partition
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from tests.index_builder.clustered import make_inputs, routed
from tests.synthetic import make_head, make_softmax

WASTE = BuildConfig().waste_weight


@pytest.fixture(scope="module")
def inputs() -> FitInputs:
    return make_inputs()[1]


def make_partition(inputs: FitInputs, clusters: int = 8, depth: int = 5) -> Partition:
    centroids = spherical_kmeans(inputs.sample, clusters, ScreenConfig(), seed=1)
    return Partition(inputs, centroids, depth)


def of_one_context(hidden_states: np.ndarray, labels: np.ndarray) -> FitInputs:
    contexts, softmax = (
        Contexts([hidden_states]),
        make_softmax(vocab_size=9, dim=hidden_states.shape[1]),
    )
    return FitInputs(
        softmax=softmax, train=contexts, labels=labels, heldout=contexts, heldout_labels=labels,
        sample=hidden_states, sample_rows=np.array([0]),
    )  # fmt: skip


def test_pairs_count_every_label_of_every_context(inputs: FitInputs) -> None:
    partition = make_partition(inputs)
    pairs = partition.pairs
    cluster_N = routed(inputs.train, partition.centroids_CD)
    counted = np.zeros((partition.clusters, inputs.vocab_size), int)
    np.add.at(counted, (np.repeat(cluster_N, 5), inputs.labels.ravel()), 1)
    found = np.zeros_like(counted)
    found[pairs.cluster, pairs.label] = pairs.hits
    np.testing.assert_array_equal(found, counted)
    np.testing.assert_array_equal(pairs.rows, np.bincount(cluster_N))


def test_counting_in_parts_is_the_same(inputs: FitInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_partition(inputs).pairs
    monkeypatch.setattr(partitions, "COUNTED_ROWS", 100)
    np.testing.assert_equal(whole, make_partition(inputs).pairs)
    centroids = spherical_kmeans(inputs.sample, 6, ScreenConfig(), seed=1)
    nowhere = -inputs.sample.mean(axis=0, keepdims=True) * 1e-3
    partition = Partition(inputs, np.vstack([nowhere, centroids]), 5)
    assert partition.clusters == 6
    np.testing.assert_array_equal(partition.centroids_CD, centroids)


def test_a_context_takes_two_bytes() -> None:
    rows = 3_000_000
    inputs = replace(
        of_one_context(np.ones((1, 1), np.float32), np.zeros((1, 1), np.uint8)),
        train=Contexts([np.ones((rows, 1), np.float16)]),
        labels=np.zeros((rows, 1), np.uint8),
    )
    tracemalloc.start()
    Partition(inputs, np.ones((1, 1), np.float32), 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    fixed = 32 * partitions.COUNTED_ROWS
    assert peak < 2 * rows + fixed


def test_lists_hold_the_most_frequent_labels_first_and_enough_of_them(inputs: FitInputs) -> None:
    partition = make_partition(inputs)
    arrays = partition.arrays(partition.knapsack.select(30))
    pairs = partition.pairs
    hits = dict(zip(zip(pairs.cluster, pairs.label, strict=True), pairs.hits, strict=True))
    for cluster, ids in enumerate(np.split(arrays["ids"], arrays["offsets"][1:-1])):
        counts = [hits[cluster, label] for label in ids]
        assert counts == sorted(counts, reverse=True)
        assert len(set(ids)) == len(ids)
    # Nothing fits a budget of 0, and an empty list could answer nothing.
    arrays = partition.arrays(partition.knapsack.select(0))
    frequent = np.argsort(-np.bincount(inputs.labels.ravel()), kind="stable")[:5]
    assert (np.diff(arrays["offsets"]) == 5).all()
    np.testing.assert_array_equal(arrays["ids"].reshape(-1, 5), np.tile(frequent, (8, 1)))
    keep = partition.knapsack.select(12)
    table = partition.table(keep)
    assert table.shape == (inputs.vocab_size, partition.clusters)
    np.testing.assert_array_equal(table.sum(axis=0), partition.sizes(keep))


def test_recall_rises_with_the_budget_up_to_all_that_was_seen(inputs: FitInputs) -> None:
    same = replace(inputs, heldout=inputs.train, heldout_labels=inputs.labels)
    partition = make_partition(same)
    recalls = [
        partition.heldout_hits(partition.knapsack.select(budget)).mean()
        for budget in (1, 3, 10, 20, 40, inputs.vocab_size)
    ]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1.0


def test_candidates_and_losses_are_those_of_lists_and_hits() -> None:
    """Which are those of the served screen: test_cascade.py."""
    softmax, inputs = make_inputs()
    partition = make_partition(inputs, clusters=6)
    keep = partition.knapsack.select(20)
    trained = make_head("screen", softmax, arrays=partition.arrays(keep)).topk(inputs.sample, 5)
    assert partition.candidates(keep) == pytest.approx(trained.scanned.mean())
    right = partition.heldout_hits(keep)[:, :5].sum(axis=1)
    expected = 5 - right + WASTE * (partition.heldout_sizes(keep, 1) - right)
    assert partition.heldout_loss(keep) == pytest.approx(expected.mean())


def test_one_context_is_enough() -> None:
    inputs = of_one_context(np.ones((1, 4), np.float32), np.array([[3, 1]], np.uint16))
    partition = make_partition(inputs, depth=2)
    arrays = partition.arrays(partition.knapsack.select(9))
    assert (arrays["ids"].tolist(), arrays["offsets"].tolist()) == ([1, 3], [0, 2])


@pytest.mark.parametrize("guard", [0.1, 0.5])
def test_a_guard_leaves_a_share_of_every_cluster_to_the_fallback(guard: float) -> None:
    softmax, inputs = make_inputs()
    centroids = spherical_kmeans(inputs.sample, 6, ScreenConfig(), seed=1)
    partition = Partition(replace(inputs, config=BuildConfig(guard=guard)), centroids, 5)
    arrays = partition.arrays(partition.knapsack.select(20))
    assert arrays["reaches"].min() == 1
    screen = make_head("screen", softmax, arrays=arrays, escalate=partition.guarded)
    left = screen.topk(inputs.sample, 1).proven
    cluster = routed(inputs.train, centroids)
    for number in range(6):
        assert left[cluster == number].mean() == pytest.approx(guard, abs=0.01)
    heldout = screen.topk(inputs.heldout.sample(inputs.heldout.rows), 1).proven
    np.testing.assert_array_equal(heldout, partition.heldout_cosines < partition.guarded)


class Items(NamedTuple):
    cluster: np.ndarray
    hits: np.ndarray
    rows: np.ndarray


@st.composite
def items(draw: st.DrawFn) -> Items:
    """Up to 4 clusters of up to 30 rows, with labels that up to all of them have."""
    rows = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    cluster = draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=40))
    hits = [draw(st.integers(1, rows[number])) for number in cluster]
    return Items(np.array(cluster, np.int32), np.array(hits, np.int32), np.array(rows, np.int64))


def average(drawn: Items, keep: np.ndarray) -> float:
    return float(drawn.rows[drawn.cluster[keep]].sum() / drawn.rows.sum())


def values(drawn: Items, waste: float = WASTE) -> np.ndarray:
    weight = drawn.rows[drawn.cluster]
    return np.asarray((1 + waste) * drawn.hits - waste * weight)


def one_by_one(drawn: Items, budget: float, waste: float) -> np.ndarray:
    """The greedy choice as a person would make it."""
    weight = drawn.rows[drawn.cluster]
    capacity = int(budget * drawn.rows.sum() * (1 + ROUNDING))
    keep = np.zeros(len(weight), bool)
    for item in np.argsort(-drawn.hits / weight, kind="stable"):
        if values(drawn, waste)[item] > 0 and weight[item] <= capacity:
            keep[item] = True
            capacity -= weight[item]
    return keep


@given(items(), st.floats(0.1, 60), st.sampled_from([0.0, WASTE, 0.2]))
def test_it_chooses_as_one_by_one_would(drawn: Items, budget: float, waste: float) -> None:
    keep = Knapsack(*drawn, waste).select(budget)
    np.testing.assert_array_equal(keep, one_by_one(drawn, budget, waste))


@given(items(), st.sampled_from([0.0, WASTE, 0.1, 0.5]))
def test_a_large_budget_keeps_all_that_pays(drawn: Items, waste: float) -> None:
    knapsack = Knapsack(*drawn, waste)
    np.testing.assert_array_equal(knapsack.select(1000), values(drawn, waste) > 0)
    assert knapsack.everything == pytest.approx(average(drawn, values(drawn, waste) > 0))
    np.testing.assert_array_equal(knapsack.select(knapsack.everything), knapsack.select(1000))
    np.testing.assert_array_equal(knapsack.select(None), knapsack.select(1000))


def test_all_that_pays_is_kept_however_many_rows_there_are() -> None:
    """Where a quotient, multiplied back, may be short of a whole number by far more than 1e-6."""
    random = np.random.default_rng(1)
    for _ in range(100):
        rows = random.integers(10**9, 10**10, 7)
        cluster = random.integers(7, size=90).astype(np.int32)
        knapsack = Knapsack(cluster, np.ones(90, np.int32), rows, 0)
        assert knapsack.select(knapsack.everything).all()
