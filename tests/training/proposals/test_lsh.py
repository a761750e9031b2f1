"""LSH Softmax: what its tables find; test_proposal.py has what holds for every search."""

import numpy as np
import torch

from logitsieve.training import LSH, SampledSoftmax
from logitsieve.training.autograd.batch import StepRng
from logitsieve.training.proposals.lsh import default_bits


def test_most_of_the_probability_is_found() -> None:
    """Tables find many times what as many classes at random would."""
    V, D, k = 2000, 16, 100
    torch.manual_seed(0)
    criterion = SampledSoftmax(D, V, LSH(k=k))
    criterion.classes.weight.data.normal_()
    criterion.rebuild()
    hidden_states = 2 * torch.randn(32, D)
    none = np.full((32, 1), -1)
    probabilities = criterion.log_prob(hidden_states).exp().detach()
    assert isinstance(criterion.proposal, LSH)
    offsets, ids = criterion.proposal.search_rows(hidden_states, none, StepRng(0, 0))
    lists = np.split(ids.astype(np.int64), offsets[1:-1])
    mass = [float(probabilities[row, own].sum()) for row, own in enumerate(lists)]
    best = probabilities.topk(k).values.sum(1).mean()
    assert np.diff(offsets).max() <= k
    assert np.mean(mass) > 0.8 * float(best)
    together = torch.from_numpy(criterion.proposal.search_batch(hidden_states[:2], none[:2])).long()
    assert float(probabilities[:2, together].sum(1).mean()) > 0.5


def test_buckets_get_smaller_as_classes_get_more() -> None:
    bits = [default_bits(v, 128, round(10 * v**0.5)) for v in (10, 1000, 10_000, 250_000, 10**6)]
    assert bits == sorted(bits)
    assert bits[2:] == [8, 11, 12]
