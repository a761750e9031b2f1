"""D-softmax: blocks by frequency, and a matrix that is zero outside of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import DSoftmax
from tests.training.loss_kit import doubles, full_cross_entropy

D, V = 6, 10
BLOCKS = [(2, 3), (3, 2), (5, 1)]
COUNTS = torch.tensor([1.0, 9, 3, 4, 5, 8, 2, 6, 7, 10])


@pytest.mark.parametrize("options", [{}, {"scale": 5.0}, {"absolute": True}, {"bias": False}])
def test_logits_are_those_of_the_matrix(options: dict[str, Any]) -> None:
    criterion = DSoftmax(D, V, COUNTS, blocks=BLOCKS, dtype=torch.float64, **options)
    weight, bias = criterion.full_classes()
    x = criterion.prepare(doubles(4, D, seed=1)) @ weight.T + (0 if bias is None else bias)
    expected = x.abs() if criterion.logit_form.absolute else x
    torch.testing.assert_close(criterion.logits(doubles(4, D, seed=1)), expected)


def test_frequent_classes_have_more_dimensions_of_their_own() -> None:
    criterion = DSoftmax(D, V, COUNTS, blocks=BLOCKS)
    weight = criterion.export().weight
    seen = [tuple(row.nonzero()[:, 0].tolist()) for row in weight]
    parts = {9: (0, 1, 2), 1: (0, 1, 2), 5: (3, 4), 8: (3, 4), 7: (3, 4)}
    assert seen == [parts.get(i, (5,)) for i in range(V)]
    assert sum(p.numel() for p in criterion.parameters()) == V + sum(n * d for n, d in BLOCKS)


def test_the_loss_is_the_full_one_of_that_matrix() -> None:
    criterion = DSoftmax(D, V, COUNTS, dtype=torch.float64, reduction="none")
    hidden, target = doubles(4, D, seed=1), torch.tensor([3, 9, -100, 0])
    torch.testing.assert_close(
        criterion(hidden, target), full_cross_entropy(criterion, hidden, target)
    )


def test_without_counts_lower_ids_are_the_frequent_ones() -> None:
    weight = DSoftmax(D, V, blocks=BLOCKS).export().weight
    assert bool((weight[:2, 3:] == 0).all())
    assert bool((weight[5:, :5] == 0).all())


def test_the_order_is_saved() -> None:
    criterion, other = DSoftmax(D, V, COUNTS, blocks=BLOCKS), DSoftmax(D, V, blocks=BLOCKS)
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other.export().weight, criterion.export().weight)


@pytest.mark.parametrize(
    "blocks",
    [[(10, 5)], [(9, 6)], [(10, 6), (0, 0)], [], [10, 6], [(10,)], [("a", 6)], [(10.0, 6)], ["ab"]],
)
def test_blocks_that_do_not_fill_the_matrix_are_refused(blocks: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DSoftmax(D, V, blocks=blocks)
    assert caught.value.field == "blocks"


def test_a_tie_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        DSoftmax(D, V).tie(torch.nn.Embedding(V, D))
    assert caught.value.field == "embedding"
