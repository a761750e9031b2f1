import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logitsieve.training import LOSSES, FullSoftmax, SampledSoftmax, SoftmaxLoss
from logitsieve.training.autograd.batch import RaggedCandidates, SharedCandidates
from tests.training.loss_kit import doubles, given, gradient, make

D, V, B = 4, 30, 6
TARGET = torch.tensor([1, 2, 3, 1, 29, 9])


class Model(nn.Module):
    """A layer and its loss, as users have them."""

    def __init__(self, criterion: SoftmaxLoss) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(D, D)
        self.criterion = criterion

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.criterion(self.layer(inputs), target)
        return loss


def three(ragged: bool) -> SampledSoftmax:
    """A loss over three candidates, for the batch or for each row of half of it."""
    torch.manual_seed(1)
    ids, weights = torch.tensor([4, 9, 20]), torch.tensor([0.0, 1.5, 1.5])
    if not ragged:
        return given(SharedCandidates(ids, weights), D, V)
    rows = B // 2
    offsets = torch.arange(0, 3 * rows + 1, 3)
    return given(RaggedCandidates(offsets, ids.repeat(rows), weights.repeat(rows)), D, V)


def halves(rank: int) -> dict[str, Any]:
    """Three steps of one of two processes on its half of each batch, for either form."""
    mine = slice(rank * B // 2, (rank + 1) * B // 2)
    states = []
    for ragged in (False, True):
        model = Model(three(ragged))
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
        for step in range(3):
            optimizer.zero_grad()
            parallel(doubles(B, D, seed=step).float()[mine], TARGET[mine]).backward()
            optimizer.step()
        states.append(model.state_dict())
    return {"states": states, "key": three(False).random.next().key}


def assert_as_one(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two `halves` equal one process with twice the batch."""
    model = Model(three(False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        model(doubles(B, D, seed=step).float(), TARGET).backward()
        optimizer.step()
    assert first["key"] != second["key"]
    for one, other in zip(first["states"], second["states"], strict=True):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(one[name], parameter.detach())
            assert torch.equal(one[name], other[name])


@pytest.mark.parametrize("name", LOSSES)
def test_scaled_gradients_make_the_same_step(name: str) -> None:
    after = []
    for scaled in (False, True):
        model = Model(make(name, D, V))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        scaler.scale(model(doubles(B, D).float(), TARGET)).backward()
        scaler.step(optimizer)
        scaler.update()
        after.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(*after, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("ragged", [False, True])
def test_tied_weights_get_both_gradients(sparse: bool, ragged: bool) -> None:
    inputs, target = torch.tensor([1, 4, 1]), torch.tensor([1, 2, 3])
    everything = SharedCandidates(torch.arange(V), torch.zeros(V))
    rows = RaggedCandidates(
        torch.arange(0, 3 * V + 1, V), everything.ids.repeat(3), torch.zeros(3 * V)
    )
    embedding = nn.Embedding(V, D, sparse=sparse)
    criterion, full = given(rows if ragged else everything, D, V), FullSoftmax(D, V)
    gradients = []
    for each, source in ((criterion, embedding), (full, nn.Embedding(V, D))):
        source.weight.data.copy_(doubles(V, D, seed=3).float())
        each.tie(source)
        assert [p.shape for p in each.parameters()] == [(V, D), (V, 1)]
        each(source(inputs), target).backward()
        gradients.append(gradient(source.weight))
    assert gradients[0].is_sparse == sparse
    torch.testing.assert_close(gradients[0].to_dense(), gradients[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_tied_embedding_may_have_another_precision(ragged: bool, dtype: torch.dtype) -> None:
    criterion, embedding = three(ragged), nn.Embedding(V, D, sparse=True, dtype=dtype)
    criterion.tie(embedding)
    exact = copy.deepcopy(criterion).double()
    hidden_states, target = doubles(B, D)[: B // 2], TARGET[: B // 2]
    loss, expected = criterion(hidden_states, target), exact(hidden_states, target)
    torch.testing.assert_close(loss.double(), expected, atol=1e-5, rtol=1e-5)
    loss.backward()
    found = [gradient(each).dtype for each in criterion.parameters()]
    assert found == [dtype, torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_computed_in_single(dtype: torch.dtype) -> None:
    for ragged in (False, True):
        criterion = three(ragged).to(dtype)
        exact = three(ragged)
        exact.load_state_dict(criterion.state_dict())
        rows = slice(0, B // 2)
        hidden_states, target = doubles(B, D).to(dtype)[rows], TARGET[rows]
        loss, expected = criterion(hidden_states, target), exact(hidden_states.float(), target)
        loss.backward()
        torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
        assert gradient(criterion.classes.weight).dtype == dtype
