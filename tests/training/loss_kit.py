"""What tests of the losses share: making any of them, and doubles whose candidates are given."""

from __future__ import annotations

from inspect import signature
from typing import Any, Unpack

import torch
from torch import Tensor

from logitsieve.training import LOSSES, SampledSoftmax, SoftmaxLoss
from logitsieve.training.autograd.batch import RaggedCandidates, SharedCandidates, Targets
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.loss import LossOptions

EVERY_CLASS = ("full", "chunked", "d-softmax", "exp")  # these look at every class in every step
SUB_LINEAR = [name for name in LOSSES if name not in EVERY_CLASS]


def make(name: str, in_features: int, n_classes: int, **options: Any) -> SoftmaxLoss:
    """The loss of that name, with frequencies if it takes them, and weights drawn from a seed."""
    kind = LOSSES[name]
    if "class_counts" in signature(kind).parameters:
        options.setdefault("class_counts", torch.arange(n_classes, 0, -1.0))
    torch.manual_seed(11)
    return kind(in_features, n_classes, **options)


def rewind(criterion: SoftmaxLoss, step: int = 0) -> None:
    """Have the next forward draw what that step drew."""
    if random := getattr(criterion, "random", None):
        random.step = step


class GivenCandidates(SampledSoftmax):
    """A sampled softmax whose candidates are those it was given."""

    def __init__(
        self,
        candidates: SharedCandidates | RaggedCandidates,
        in_features: int,
        n_classes: int,
        **common: Unpack[LossOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **common)
        self.candidates = candidates

    def propose(
        self, hidden_BD: Tensor, targets: Targets, random: StepRng
    ) -> SharedCandidates | RaggedCandidates:
        return self.candidates


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


def full_cross_entropy(criterion: SoftmaxLoss, hidden: Tensor, target: Tensor) -> Tensor:
    """Each row's loss by torch alone [B], with gradients; -100 for no target."""
    x_BV = criterion.logits(hidden)
    several = target[:, None] if target.ndim == 1 else target
    row, place = (several != -100).nonzero(as_tuple=True)
    mine_BV = torch.zeros(x_BV.shape, dtype=torch.bool)
    mine_BV[row, several[row, place]] = True
    counts_B = mine_BV.sum(1)
    mean_B = (x_BV * mine_BV).sum(1) / counts_B.clamp(min=1)
    return (x_BV.logsumexp(1) - mean_B) * (counts_B > 0)
