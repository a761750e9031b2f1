from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.ivf import cluster_arrays, cluster_ranks, fit_ivf
from logitsieve.index_builder.fitting import TARGET, heldout_sample, least_reaching
from tests.index_builder.clustered import make_inputs
from tests.synthetic import make_head, make_softmax


def test_the_bias_routes_and_equal_rows_share_a_list() -> None:
    """Rows that differ in nothing but their bias."""
    bias = np.array([-5, 0, 5], np.float32).repeat(30)
    softmax = Softmax(np.ones((90, 4), np.float32), bias)
    arrays = cluster_arrays(softmax, 12, BuildConfig().kmeans_iterations, seed=0)
    head = make_head("ivf", softmax, arrays=arrays, nprobe=1)
    top = head.topk(np.zeros((1, 4), np.float32), 3)
    assert (top.ids.tolist(), top.scanned.tolist()) == ([[60, 61, 62]], [30])
    few = make_softmax(vocab_size=5)
    softmax = Softmax(np.repeat(few.weight, 20, axis=0), np.repeat(few.bias, 20))
    arrays = cluster_arrays(softmax, 40, BuildConfig().kmeans_iterations, seed=0)
    assert (np.diff(arrays["offsets"]) % 20 == 0).all()
    _, inputs = make_inputs(vocab_size=225)
    assert fit_ivf(inputs).summary["clusters"] <= 60


def test_ranks_are_what_a_head_needs() -> None:
    softmax, inputs = make_inputs()
    arrays = cluster_arrays(softmax, 20, BuildConfig().kmeans_iterations, seed=0)
    hidden, labels = heldout_sample(inputs)
    needed, read = cluster_ranks(arrays, hidden, labels)
    for nprobe in (1, 4, 20):
        head = make_head("ivf", softmax, arrays=arrays, nprobe=nprobe)
        top = head.topk(hidden, 1)
        np.testing.assert_array_equal(top.ids[:, 0] == labels[:, 0], needed[:, 0] <= nprobe)
        np.testing.assert_array_equal(top.scanned, read[:, nprobe - 1])


def test_the_start_that_reads_least_is_kept() -> None:
    softmax, inputs = make_inputs(vocab_size=600)
    config = BuildConfig(ivf_starts=4, ivf_clusters=30, seed=5)
    made = fit_ivf(replace(inputs, config=config))
    sample, best = heldout_sample(inputs), (np.inf, 0)
    for start in range(4):
        arrays = cluster_arrays(softmax, 30, config.kmeans_iterations, 5 + start)
        needed, read = cluster_ranks(arrays, *sample)
        nprobe = least_reaching(needed)
        best = min(best, (float(read[:, nprobe - 1].mean()), start))
    expected = cluster_arrays(softmax, 30, config.kmeans_iterations, 5 + best[1])
    np.testing.assert_equal(made.arrays, expected)
    needed, _ = cluster_ranks(expected, *sample)
    found = needed <= made.knobs["nprobe"]
    assert min(found[:, 0].mean(), found.mean()) >= TARGET


@pytest.mark.parametrize("clusters", [1, 9, 300, 999])
def test_every_row_is_in_one_list_and_none_is_empty(clusters: int) -> None:
    softmax = make_softmax()
    arrays = cluster_arrays(softmax, clusters, BuildConfig().kmeans_iterations, seed=0)
    assert sorted(arrays["ids"]) == list(range(300))
    assert (np.diff(arrays["offsets"]) > 0).all()
    assert arrays["offsets"][-1] == 300
    assert 1 <= len(arrays["centroids"]) == len(arrays["biases"]) <= min(clusters, 300)
