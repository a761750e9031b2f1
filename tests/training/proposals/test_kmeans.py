from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.training import KMeans, SampledSoftmax
from logitsieve.training.autograd.batch import StepRng
from logitsieve.training.proposals.kmeans import cluster_arrays
from tests.synthetic import make_softmax

V, D = 300, 8


def make(*, seed: int = 0, **options: Any) -> SampledSoftmax:
    torch.manual_seed(0)
    criterion = SampledSoftmax(D, V, KMeans(**options), seed=seed)
    criterion.classes.weight.data.normal_()
    criterion.rebuild()
    return criterion


def kmeans(criterion: SampledSoftmax) -> KMeans:
    assert isinstance(criterion.proposal, KMeans)
    return criterion.proposal


def test_a_row_finds_what_its_lists_hold() -> None:
    criterion, hidden_states = make(n_lists=20, nprobe=3), torch.randn(6, D)
    arrays = kmeans(criterion).lists.arrays
    scores = hidden_states.numpy() @ arrays["centroids"].T + arrays["biases"]
    offsets, ids = kmeans(criterion).search_rows(hidden_states, np.full((6, 1), -1), StepRng(0, 0))
    for row in range(6):
        best = np.argsort(-scores[row])[:3]
        held = [arrays["ids"][arrays["offsets"][c] : arrays["offsets"][c + 1]] for c in best]
        assert ids[offsets[row] : offsets[row + 1]].tolist() == sorted(np.concatenate(held))
    criterion = make(n_lists=20, nprobe=20)
    _, ids = kmeans(criterion).search_rows(torch.randn(1, D), np.array([[4]]), StepRng(0, 0))
    assert ids.tolist() == [i for i in range(V) if i != 4]
    assert (kmeans(make(n_lists=30, k=60)).probes, kmeans(make(n_lists=30, k=1)).probes) == (6, 1)
    many: Any = torch.randn(200, D), np.full((200, 1), -1), StepRng(0, 0)
    offsets, _ = kmeans(make(n_lists=30, k=60)).search_rows(*many)
    assert 30 < np.diff(offsets).mean() < 120


@pytest.mark.parametrize("clusters", [1, 9, 300, 999])
def test_every_row_is_in_one_list_and_none_is_empty(clusters: int) -> None:
    arrays = cluster_arrays(make_softmax(), clusters, seed=0)
    assert sorted(arrays["ids"]) == list(range(300))
    assert (np.diff(arrays["offsets"]) > 0).all()
    assert arrays["offsets"][-1] == 300
    assert 1 <= len(arrays["centroids"]) == len(arrays["biases"]) <= min(clusters, 300)


def test_equal_rows_share_a_list() -> None:
    few = make_softmax(vocab_size=5)
    softmax = Softmax(np.repeat(few.weight, 20, axis=0), np.repeat(few.bias, 20))
    assert (np.diff(cluster_arrays(softmax, 40, seed=0)["offsets"]) % 20 == 0).all()


def test_an_update_clusters_anew_and_a_state_goes_on_with_the_same_lists() -> None:
    criterion = make(n_lists=20, nprobe=1)
    before = {name: array.copy() for name, array in kmeans(criterion).lists.arrays.items()}
    criterion.classes.weight.data[7:9] *= -3
    kmeans(criterion).lists.update(torch.tensor([7, 8]), *criterion.classes.detached())
    after = kmeans(criterion).lists.arrays
    assert before["ids"].tolist() != after["ids"].tolist()
    criterion.rebuild()
    np.testing.assert_equal(kmeans(criterion).lists.arrays, after)
    criterion, other = make(n_lists=20), make(n_lists=20, seed=1)
    criterion.classes.weight.data.normal_()
    criterion.rebuild()
    kmeans(other).lists.load_state_dict(kmeans(criterion).lists.state_dict())
    hidden_states, none = torch.randn(9, D), np.full((9, 1), -1)
    fewer = SampledSoftmax(D, V - 1, KMeans(n_lists=20))
    with pytest.raises(InvalidRequest, match="classes"):
        kmeans(fewer).lists.load_state_dict(kmeans(criterion).lists.state_dict())
    asked: Any = hidden_states, none, StepRng(0, 0)
    one, two = kmeans(criterion), kmeans(other)
    np.testing.assert_equal(one.search_rows(*asked), two.search_rows(*asked))
    for lists in (one.lists, two.lists):
        lists.rebuild(*other.classes.detached())
    np.testing.assert_equal(one.lists.arrays, two.lists.arrays)
