"""k-means over the rows of W: every row in one list, equal rows in the same."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.ivf import cluster_arrays
from tests.synthetic import make_softmax


@pytest.mark.parametrize("clusters", [1, 9, 300, 999])
def test_every_row_is_in_one_list_and_none_is_empty(clusters: int) -> None:
    softmax = make_softmax()
    arrays = cluster_arrays(softmax, clusters, BuildConfig().kmeans_iterations, seed=0)
    assert sorted(arrays["ids"]) == list(range(300))
    assert (np.diff(arrays["offsets"]) > 0).all()
    assert arrays["offsets"][-1] == 300
    assert 1 <= len(arrays["centroids"]) == len(arrays["biases"]) <= min(clusters, 300)


def test_equal_rows_share_a_list() -> None:
    few = make_softmax(vocab_size=5)
    softmax = Softmax(np.repeat(few.weight, 20, axis=0), np.repeat(few.bias, 20))
    arrays = cluster_arrays(softmax, 40, BuildConfig().kmeans_iterations, seed=0)
    assert (np.diff(arrays["offsets"]) % 20 == 0).all()
