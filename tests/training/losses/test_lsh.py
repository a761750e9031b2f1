"""LSH Softmax: what it finds."""

from __future__ import annotations

import numpy as np
import torch

from logitsieve.training import LSHSoftmax
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.search_softmax import default_bits


def test_most_of_the_probability_is_found() -> None:
    """Tables find many times what as many classes at random would."""
    V, D, k = 2000, 16, 100
    torch.manual_seed(0)
    criterion = LSHSoftmax(D, V, k=k)
    criterion.classes.weight.data.normal_()
    criterion.rebuild()
    hidden = 2 * torch.randn(32, D)
    none = np.full((32, 1), -1)
    probabilities = criterion.log_prob(hidden).exp().detach()
    offsets, ids = criterion.search_rows(hidden, none, StepRng(0, 0))
    mass = [
        float(probabilities[row, ids[offsets[row] : offsets[row + 1]].astype(np.int64)].sum())
        for row in range(32)
    ]
    best = probabilities.topk(k).values.sum(1).mean()
    assert np.diff(offsets).max() <= k
    assert np.mean(mass) > 0.8 * float(best)
    together = torch.from_numpy(criterion.search_batch(hidden[:2], none[:2])).long()
    assert float(probabilities[:2, together].sum(1).mean()) > 0.5


def test_buckets_get_smaller_as_classes_get_more() -> None:
    bits = [default_bits(v, 128, round(10 * v**0.5)) for v in (10, 1000, 10_000, 250_000, 10**6)]
    assert bits == sorted(bits)
    assert bits[2:] == [8, 11, 12]


def test_training_follows_its_rows() -> None:
    """Rows that moved are found by where they are after a period, and not before."""
    torch.manual_seed(0)
    criterion = LSHSoftmax(8, 300, k=20, tables=20, bits=5, per_row=True)
    optimizer = torch.optim.SGD(criterion.parameters(), lr=5.0)
    criterion.track(optimizer, every=3)
    first, hidden = criterion.tables.codes.copy(), torch.randn(4, 8)
    for step in range(3):
        np.testing.assert_array_equal(criterion.tables.codes, first)
        optimizer.zero_grad()
        criterion(hidden, torch.arange(4)).backward()
        optimizer.step()
        assert step < 3
    assert (criterion.tables.codes != first).any()
    fresh = criterion.tables.codes.copy()
    criterion.rebuild()
    np.testing.assert_array_equal(criterion.tables.codes, fresh)
