"""Updates indexes of the rows of W after steps of an optimizer.

Rows with a gradient are dirty until they are indexed again, once per period. Optimizers that move
other rows are refused.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.classes import ClassWeights

# Optimizers that move only rows with a gradient, if these of their options are 0.
_TRACKABLE: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum", "weight_decay"),
    Adagrad: ("weight_decay",),
    SparseAdam: (),
}
_ALLOWED = "SGD without momentum, Adagrad or SparseAdam, without weight decay"
_SPARSE = "sparse gradients (a head or a tied embedding with sparse=True)"


class RowIndex(Protocol):
    """An index over the rows of W: weight [V, D] and bias [V, 1] (or None), detached."""

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None: ...

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Index rows that have moved: int64 [N], ascending, each once."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors, ints, floats and dicts of them."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state. InvalidRequest if shapes differ."""


@dataclass
class Tracking:
    """Counts steps and updates, and collects the rows that moved since the last update."""

    steps: int = 0
    updated: int = 0  # the step of the last update
    updates: int = 0
    dirty: list[Tensor] = field(default_factory=list)
    noted: int = 0

    def after_step(
        self, classes: ClassWeights, index: RowIndex, every: int, growth: float, *_: object
    ) -> None:
        self.steps += 1
        for parameter in classes.parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            if not gradient.is_sparse:
                raise InvalidRequest("optimizer", "a dense gradient of the classes", _SPARSE)
            self.note(gradient._indices()[0].clone(), len(gradient))
        if self.steps - self.updated >= every * growth**self.updates:
            weight, bias = classes.detached()
            index.update(self.rows().to(weight.device), weight, bias)
            self.forget()
            self.updated = self.steps
            self.updates += 1

    def note(self, rows: Tensor, n_classes: int) -> None:
        self.dirty.append(rows)
        self.noted += len(rows)
        if self.noted > 2 * n_classes:
            self.dirty = [self.rows()]
            self.noted = len(self.dirty[0])

    def rows(self) -> Tensor:
        if not self.dirty:
            return torch.empty(0, dtype=torch.int64)
        device = self.dirty[-1].device
        rows: Tensor = torch.unique(torch.cat([each.to(device) for each in self.dirty]))
        return rows

    def forget(self) -> None:
        self.dirty.clear()
        self.noted = 0

    def state_dict(self) -> dict[str, Any]:
        numbers = {"steps": self.steps, "updated": self.updated, "updates": self.updates}
        return {**numbers, "dirty": self.rows()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.updated, self.updates = state["steps"], state["updated"], state["updates"]
        self.dirty, self.noted = [state["dirty"]], len(state["dirty"])


def check_trackable(optimizer: Optimizer, classes: ClassWeights) -> None:
    name = type(optimizer).__name__
    if not classes.sparse:
        raise InvalidRequest("optimizer", f"{name} on dense gradients", _SPARSE)
    kind = next((each for each in _TRACKABLE if isinstance(optimizer, each)), None)
    if kind is None:
        raise InvalidRequest("optimizer", name, _ALLOWED)
    missing = {id(each) for each in classes.parameters() if each.requires_grad}
    for group in optimizer.param_groups:
        members = {id(each) for each in group["params"]}
        for option in _TRACKABLE[kind]:
            if missing & members and group[option]:
                raise InvalidRequest("optimizer", f"{name} with {option}={group[option]}", _ALLOWED)
        missing -= members
    if missing:
        raise InvalidRequest("optimizer", "other parameters", "one that has the head's parameters")
