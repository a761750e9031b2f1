"""What a head keeps about its rows, kept up to date with an optimizer.

Rows that got a gradient are dirty; they are indexed anew once a period, all at once: doing so after
every step would cost many times the loss itself. That is right only if the optimizer moves the rows
that got a gradient and no others, so anything else is refused by name, unless all rows are indexed
anew every so many steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam
from torch.utils.hooks import RemovableHandle

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.losses.proposal import Structure

# Optimizers that move only rows that have a gradient, if these options of theirs are 0.
_FOLLOWED: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum", "weight_decay"),
    Adagrad: ("weight_decay",),
    SparseAdam: (),
}
_ALLOWED = "SGD without momentum, Adagrad or SparseAdam, without weight decay, or rebuild_every=N"


@dataclass
class Progress:
    """Where following is, as it is kept in checkpoints: optimizer steps, updates, dirty rows."""

    steps: int = 0
    updated: int = 0  # the step of the last update
    updates: int = 0
    dirty: list[Tensor] = field(default_factory=list)  # int64, most of them of one step
    noted: int = 0  # ids in `dirty`, with duplicates

    def note(self, rows: Tensor, n_classes: int) -> None:
        """Add rows; so that a long period holds no more than 2 V ids, duplicates are dropped."""
        self.dirty.append(rows)
        self.noted += len(rows)
        if self.noted > 2 * n_classes:
            self.dirty = [self.rows()]
            self.noted = len(self.dirty[0])

    def rows(self) -> Tensor:
        """The dirty rows, ascending, each once."""
        if not self.dirty:
            return torch.empty(0, dtype=torch.int64)
        device = self.dirty[-1].device  # those of a checkpoint may be elsewhere
        rows: Tensor = torch.unique(torch.cat([each.to(device) for each in self.dirty]))
        return rows

    def clean(self) -> None:
        """All rows are indexed as they are now."""
        self.forget()
        self.updated = self.steps

    def forget(self) -> None:
        """No row is dirty."""
        self.dirty.clear()
        self.noted = 0

    def state_dict(self) -> dict[str, Any]:
        """Three numbers and one tensor."""
        numbers = {"steps": self.steps, "updated": self.updated, "updates": self.updates}
        return {**numbers, "dirty": self.rows()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what state_dict gave."""
        self.steps, self.updated, self.updates = state["steps"], state["updated"], state["updates"]
        self.dirty, self.noted = [state["dirty"]], len(state["dirty"])


@dataclass(frozen=True)
class Follower:
    """Updates `structure` every `every` steps, a period that grows by `growth` each time."""

    optimizer: Optimizer
    classes: ClassWeights
    structure: Structure
    progress: Progress
    every: int
    growth: float
    rebuild_every: int | None

    def check(self) -> None:
        """Raise InvalidRequest unless the classes as they are can be followed."""
        if self.rebuild_every is None:
            _refuse_what_moves_others(self.optimizer, self.classes)
        _groups_of(self.optimizer, self.classes)

    def attach(self) -> RemovableHandle:
        """Follow the optimizer from now on, after each of its steps."""
        return self.optimizer.register_step_post_hook(self.after_step)

    def after_step(self, *_: object) -> None:
        """Note the rows that moved, and index them where the period is over."""
        progress = self.progress
        progress.steps += 1
        for parameter in self.classes.parameters():
            self._note(parameter.grad)
        weight, bias = self.classes.detached()
        if self.rebuild_every is not None and progress.steps % self.rebuild_every == 0:
            self.structure.rebuild(weight, bias)
            progress.clean()
        elif progress.steps - progress.updated >= self.every * self.growth**progress.updates:
            self.structure.update(progress.rows().to(weight.device), weight, bias)
            progress.clean()
            progress.updates += 1

    def _note(self, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        if gradient.is_sparse:
            self.progress.note(gradient._indices()[0].clone(), len(gradient))
        elif self.rebuild_every is None:
            raise InvalidRequest("optimizer", "a dense gradient of the classes", _SPARSE)


def attached(handle: RemovableHandle) -> bool:
    """Whether nobody has ended it."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks


_SPARSE = "sparse gradients (a head or a tied embedding with sparse=True), or rebuild_every=N"


def _groups_of(optimizer: Optimizer, classes: ClassWeights) -> list[dict[str, Any]]:
    """Those that the classes' parameters are in; InvalidRequest where one is missing."""
    wanted = {id(each) for each in classes.parameters() if each.requires_grad}
    members = [{id(each) for each in group["params"]} for group in optimizer.param_groups]
    if not wanted <= set().union(*members):
        raise InvalidRequest("optimizer", "other parameters", "one that has the head's parameters")
    both = zip(optimizer.param_groups, members, strict=True)
    return [group for group, ids in both if wanted & ids]


def _refuse_what_moves_others(optimizer: Optimizer, classes: ClassWeights) -> None:
    name = type(optimizer).__name__
    if not classes.sparse:
        raise InvalidRequest("optimizer", f"{name} on dense gradients", _SPARSE)
    known = next((kind for kind in _FOLLOWED if isinstance(optimizer, kind)), None)
    if known is None:
        raise InvalidRequest("optimizer", name, _ALLOWED)
    for group in _groups_of(optimizer, classes):
        for option in _FOLLOWED[known]:
            if group[option]:
                raise InvalidRequest("optimizer", f"{name} with {option}={group[option]}", _ALLOWED)
