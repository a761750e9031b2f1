"""What tests of the losses share: making any of them, and doubles whose candidates are given."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from logitsieve.training import LOSSES, FrequencyProposal, Proposal, SampledSoftmax, SoftmaxLoss
from logitsieve.training.autograd.batch import (
    Candidates,
    SharedCandidates,
    StepRng,
    Targets,
    read_batch,
)

EVERY_CLASS = ("full", "chunked", "d-softmax", "exp")  # these look at every class in every step
SUB_LINEAR = [name for name in LOSSES if name not in EVERY_CLASS]


def make(name: str, in_features: int, n_classes: int, **options: Any) -> SoftmaxLoss:
    """The loss of that name, with frequencies if it takes them, and weights drawn from a seed."""
    torch.manual_seed(11)
    options.setdefault("class_counts", torch.arange(max(n_classes, 1), 0, -1.0))
    return LOSSES[name](in_features, n_classes, **options)


def rewind(criterion: SoftmaxLoss, step: int = 0) -> None:
    """Have the next forward draw what that step drew."""
    if random := getattr(criterion, "random", None):
        random.step = step


def gradient(tensor: Tensor) -> Tensor:
    """The gradient of what has one."""
    assert tensor.grad is not None
    return tensor.grad


@dataclass(kw_only=True, eq=False)
class Given(Proposal):
    """A proposal whose candidates were given to it."""

    candidates: Candidates = field(kw_only=False)

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> Candidates:
        return self.candidates


def given(candidates: Candidates, dim: int, classes: int, **common: Any) -> SampledSoftmax:
    """A sampled softmax over these candidates."""
    return SampledSoftmax(dim, classes, Given(candidates), **common)


def proposed(
    criterion: SampledSoftmax, hidden_states: Tensor, target: Tensor, rng: StepRng | None = None
) -> Candidates:
    """What the proposal of a loss draws in its next step, or by `rng`; -100 for no target."""
    batch = read_batch(hidden_states, target, criterion.in_features, criterion.n_classes, -100)
    prepared = criterion.prepare(batch.hidden_states).detach()
    return criterion.proposal.propose(prepared, batch.targets, rng or criterion.random.next())


def estimates(
    criterion: SampledSoftmax, hidden_states: Tensor, target: Tensor, drawn: Candidates
) -> Tensor:
    """[B]: what candidates make of the sum of e^x over all classes but the targets."""
    batch = read_batch(hidden_states, target, criterion.in_features, criterion.n_classes, -100)
    x_BV = criterion.logits(batch.hidden_states).detach()
    x_BV[batch.targets.rows, batch.targets.classes] = -torch.inf
    if isinstance(drawn, SharedCandidates):
        return (x_BV[:, drawn.ids] + drawn.log_weights).exp().sum(1)
    rows = torch.arange(len(x_BV)).repeat_interleave(drawn.offsets.diff())
    terms = (x_BV[rows, drawn.ids] + drawn.log_weights).exp()
    return torch.zeros(len(x_BV), dtype=x_BV.dtype).index_add_(0, rows, terms)


def rest_of(criterion: SoftmaxLoss, hidden_states: Tensor, target: Tensor) -> Tensor:
    """[B]: the sum of e^x over all classes but the targets."""
    x_BV = criterion.logits(hidden_states).detach()
    several = target[:, None] if target.ndim == 1 else target
    for row, ids in enumerate(several):
        x_BV[row, ids[ids != -100]] = -torch.inf
    return x_BV.exp().sum(1)


def middles(fixed: FrequencyProposal) -> Tensor:
    """A number for each class that draws it [V]."""
    return fixed.sums - fixed.log_q.exp() / 2


def assert_unbiased(criterion: SoftmaxLoss, hidden_states: Tensor, target: Tensor) -> None:
    """The mean of Z' over 400 steps is Z within four standard errors, which are small."""
    assert_mean_of_one([criterion] * 400, hidden_states, target, 0.02)


def assert_mean_of_one(
    criterions: Iterable[SoftmaxLoss], hidden_states: Tensor, target: Tensor, most: float
) -> None:
    """The mean of Z' over Z of each is 1 within four standard errors, which are below `most`."""
    with torch.no_grad():
        ratios = torch.stack(
            [
                (c(hidden_states, target) - full_cross_entropy(c, hidden_states, target)).exp()
                for c in criterions
            ]
        )
    error = ratios.std(0) / len(ratios) ** 0.5
    assert bool((error < most).all()), "an estimate that says nothing proves nothing"
    assert bool(((ratios.mean(0) - 1).abs() < 4 * error).all())


class Numbers(StepRng):
    """A step whose numbers are those it was given."""

    def __init__(self, uniforms: Tensor) -> None:
        super().__init__(0, 0)
        object.__setattr__(self, "given", uniforms)

    def uniforms(self, count: int, draw: int = 0) -> Tensor:
        given: Tensor = self.__dict__["given"]
        assert given.numel() == count
        return given


def doubles(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """float64 normals."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn * scale


def full_cross_entropy(criterion: SoftmaxLoss, hidden_states: Tensor, target: Tensor) -> Tensor:
    """Each row's loss by torch alone [B], with gradients; -100 for no target."""
    x_BV = criterion.logits(hidden_states)
    several = target[:, None] if target.ndim == 1 else target
    row, place = (several != -100).nonzero(as_tuple=True)
    mine_BV = torch.zeros(x_BV.shape, dtype=torch.bool)
    mine_BV[row, several[row, place]] = True
    counts_B = mine_BV.sum(1)
    mean_B = (x_BV * mine_BV).sum(1) / counts_B.clamp(min=1)
    return (x_BV.logsumexp(1) - mean_B) * (counts_B > 0)
