import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop, SparseAdam

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import LOSSES, SampledSoftmax, SoftmaxLoss
from logitsieve.training.autograd.batch import SharedCandidates
from tests.refusals import refused
from tests.training.loss_kit import doubles, given, make

D, V = 4, 9


class Seen:
    """An index that notes what it was told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        self.events.append("rebuilt")

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        assert not weight.requires_grad
        self.events.append(rows.tolist())

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.events = []


def made(**common: Any) -> tuple[SampledSoftmax, Seen]:
    candidates, seen = SharedCandidates(torch.tensor([7]), torch.zeros(1)), Seen()
    criterion = given(candidates, D, V, **common)
    criterion.proposal.index = seen
    return criterion, seen


def has_index(criterion: SoftmaxLoss) -> bool:
    return isinstance(criterion, SampledSoftmax) and criterion.proposal.index is not None


def train(criterion: SampledSoftmax, optimizer: Optimizer, targets: list[int]) -> None:
    for target in targets:
        optimizer.zero_grad()
        criterion(doubles(1, D).float(), torch.tensor([target])).backward()
        optimizer.step()


def tracked(
    every: int, growth: float = 1.0, **common: Any
) -> tuple[SampledSoftmax, Seen, Optimizer]:
    """A loss whose index follows an optimizer."""
    criterion, seen = made(**common)
    optimizer = SGD(criterion.parameters(), lr=0.1)
    assert criterion.track(optimizer, every=every, growth=growth) is not None
    return criterion, seen, optimizer


@pytest.mark.parametrize(
    ("every", "growth", "targets", "events"),
    [
        (3, 1.0, [2, 1, 2, 5, 5, 5, 0], [[1, 2, 7], [5, 7]]),
        (1, 2.0, [0, 1, 2, 3, 4, 5, 6, 8], [[0, 7], [1, 2, 7], [3, 4, 5, 6, 7]]),
    ],
)
def test_rows_that_got_a_gradient_are_indexed_once_a_period(
    every: int, growth: float, targets: list[int], events: list[list[int]]
) -> None:
    criterion, seen, optimizer = tracked(every, growth)
    train(criterion, optimizer, targets)
    assert seen.events == events


def test_gradients_of_several_batches_of_copies_and_of_a_removed_handle() -> None:
    criterion, seen, optimizer = tracked(1)
    for target in (3, 1):
        criterion(doubles(1, D).float(), torch.tensor([target])).backward()
    optimizer.step()
    assert seen.events == [[1, 3, 7]]
    criterion, seen, optimizer = tracked(1, bias=False)
    other = copy.deepcopy(criterion)
    train(other, SGD(other.parameters(), lr=0.1), [1])
    train(criterion, optimizer, [2])
    assert seen.events == [[2, 7]]
    criterion, seen = made()
    optimizer = SGD(criterion.parameters(), lr=0.1)
    handle = criterion.track(optimizer, every=1)
    assert handle is not None
    handle.remove()
    train(criterion, optimizer, [1])
    assert seen.events == []


def test_a_long_period_holds_no_more_ids_than_there_are_classes_twice() -> None:
    criterion, seen = made(bias=False)
    optimizer = SGD(criterion.parameters(), lr=0.1)
    criterion.track(optimizer)
    for step in range(49):
        train(criterion, optimizer, [step % 5])
        assert sum(len(rows) for rows in criterion.tracking.dirty) <= 2 * V
    train(criterion, optimizer, [8])
    assert seen.events == [[0, 1, 2, 3, 4, 7, 8]]


def test_rows_of_a_tied_embedding_are_dirty_too() -> None:
    criterion, seen = made(bias=False)
    embedding = nn.Embedding(V, D, sparse=True)
    criterion.tie(embedding)
    optimizer = SparseAdam(list(criterion.parameters()))
    criterion.track(optimizer, every=1)
    criterion(embedding(torch.tensor([4])), torch.tensor([1])).backward()
    optimizer.step()  # type: ignore[no-untyped-call]
    assert seen.events == ["rebuilt", [1, 4, 7]]


def test_a_checkpoint_has_the_dirty_rows_and_the_schedule() -> None:
    criterion, _, optimizer = tracked(2, 2.0)
    train(criterion, optimizer, [0, 1, 2, 3])
    other, seen, resumed = tracked(2, 2.0)
    other.load_state_dict(criterion.state_dict())
    train(other, resumed, [4, 5])
    assert seen.events == [[2, 3, 4, 5, 7]]


REFUSED: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "momentum": (SGD, {"momentum": 0.9}),
    "SGD with weight_decay": (SGD, {"weight_decay": 0.1}),
    "Adagrad with weight_decay": (Adagrad, {"weight_decay": 0.1}),
    "Adam": (Adam, {}),
    "AdamW": (AdamW, {}),
    "RMSprop": (RMSprop, {}),
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_moves_other_rows_is_refused_by_name(named: str) -> None:
    kind, options = REFUSED[named]
    criterion, _ = made()
    with refused("optimizer", named):
        criterion.track(kind(criterion.parameters(), lr=0.1, **options))  # type: ignore[call-arg]


def test_what_an_optimizer_must_have_is_named() -> None:
    criterion, _ = made(sparse=False)
    with refused("optimizer", "dense"):
        criterion.track(SGD(criterion.parameters(), lr=0.1))
    criterion, _ = made()
    with refused("optimizer", "other parameters"):
        criterion.track(SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    criterion, _ = made(bias=False)
    optimizer = SGD(criterion.parameters(), lr=0.1)
    criterion.track(optimizer)
    dense = criterion.classes.weight.sum() + criterion(doubles(1, D).float(), torch.tensor([1]))
    dense.backward()
    with pytest.raises(InvalidRequest, match="dense"):
        optimizer.step()
    criterion, _ = made()
    assert criterion.classes.bias is not None
    with pytest.raises(InvalidRequest, match="other parameters"):
        criterion.track(SGD([criterion.classes.weight], lr=0.1))
    groups: Any = [{"params": [criterion.classes.weight]}]
    groups += [{"params": [criterion.classes.bias], "momentum": 0.9}]
    with pytest.raises(InvalidRequest, match="momentum"):
        criterion.track(SGD(groups, lr=0.1))
    criterion.classes.bias.requires_grad_(False)
    assert criterion.track(SGD([criterion.classes.weight], lr=0.1)) is not None


@pytest.mark.parametrize(
    ("sparse", "reason"), [(True, "other parameters"), (False, "SGD on dense gradients")]
)
def test_tied_weights_are_looked_for_in_the_optimizer(sparse: bool, reason: str) -> None:
    criterion, _ = made(bias=False)
    optimizer = SGD(criterion.parameters(), lr=0.1)
    criterion.tie(nn.Embedding(V, D, sparse=sparse))
    with pytest.raises(InvalidRequest, match=reason):
        criterion.track(optimizer)


@pytest.mark.parametrize("options", [{"every": 0}, {"growth": 0.5}])
def test_bad_periods_are_named(options: dict[str, Any]) -> None:
    criterion, _ = made()
    with refused(next(iter(options))):
        criterion.track(SGD(criterion.parameters(), lr=0.1), **options)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_with_a_structure_refuses_momentum_and_is_tied_before(name: str) -> None:
    criterion, embedding = make(name, 8, 60), nn.Embedding(60, 8, sparse=True)
    optimizer = SGD(criterion.parameters(), lr=0.1, momentum=0.9)
    if not has_index(criterion):
        assert criterion.track(optimizer) is None
        return
    with pytest.raises(InvalidRequest, match="momentum"):
        criterion.track(optimizer)
    weight = criterion.classes.weight
    assert criterion.track(SGD(criterion.parameters(), lr=0.1)) is not None
    with pytest.raises(InvalidRequest, match="tie before track"):
        criterion.tie(embedding)
    assert criterion.classes.weight is weight
