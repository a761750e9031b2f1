import copy

import pytest
import torch
from torch import Tensor, nn

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import LOSSES, clip_grad_norm_
from logitsieve.training.autograd.classes import ClassWeights, LogitForm, gather, place
from tests.training.loss_kit import doubles, gradient

IDS = torch.tensor([4, 0, 2])


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_is_a_positive_number(scale: float) -> None:
    with pytest.raises(InvalidRequest, match="scale: got"):
        LogitForm(scale=scale)


def test_sparse_gradients_are_coalesced_unless_a_tied_embedding_decides_otherwise() -> None:
    placed = place(IDS, doubles(3, 2), 6, sparse=True)
    assert placed.is_coalesced()
    assert placed.indices()[0].tolist() == [0, 2, 4]
    assert torch.equal(placed.to_dense(), place(IDS, doubles(3, 2), 6, sparse=False))
    classes = ClassWeights(6, 3, bias=True, sparse=True)
    for each in (classes, copy.deepcopy(classes)):
        gather(each.weight, IDS, each.sparse).sum().backward()  # type: ignore[no-untyped-call]
        assert gradient(each.weight).is_coalesced()
    classes = ClassWeights(6, 3, bias=True, sparse=True)
    with pytest.raises(InvalidRequest, match="embedding: got"):
        classes.tie(nn.Embedding(6, 4))
    embedding = nn.Embedding(6, 3)
    classes.tie(embedding)
    assert classes.weight is embedding.weight
    assert not classes.sparse
    assert float(clip_grad_norm_([nn.Parameter(torch.zeros(2))], 1.0)) == 0


def gradients(sparse: bool, times: int = 1) -> list[nn.Parameter]:
    """Parameters of a layer and a loss, with gradients of `times` batches added up."""
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    criterion = LOSSES["uniform"](4, 20, n_sampled=5, sparse=sparse)
    target = torch.tensor([1, 2, 3, 1, 1, 9])
    for step in range(times):
        criterion(layer(doubles(6, 4, seed=step).float()), target).backward()
    return [*layer.parameters(), *criterion.parameters()]


def dense(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [gradient(each).to_dense() for each in parameters]


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
@pytest.mark.parametrize("times", [1, 3])
def test_dense_and_sparse_gradients_are_clipped_as_torch_does(max_norm: float, times: int) -> None:
    mixed, plain = gradients(True, times), gradients(False, times)
    got = clip_grad_norm_(iter(mixed), max_norm)
    expected = nn.utils.clip_grad_norm_(plain, max_norm)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(dense(mixed), dense(plain))
