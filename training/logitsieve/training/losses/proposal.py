"""What a method gives to the sampled softmax: candidates, and how often each is to be counted.

Shape letters: B batch rows, D hidden size, M candidates of the batch, E candidates of all rows.

A candidate's log-weight is -log of the expected number of times that it is in the set, or 0 if it
is there for certain. A candidate that is a target of a row is masked for that row by the core, and
the row's targets are always there with log-weight 0. A candidate may be there several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from logitsieve.training.autograd.rng import Step
from logitsieve.training.losses.targets import Targets


@dataclass(frozen=True)
class Shared:
    """One set for all rows: ids int64 [M], log_weights float [M] (float64 where it matters)."""

    ids: Tensor
    log_weights: Tensor


@dataclass(frozen=True)
class Ragged:
    """A set for each row: row r has ids[offsets[r] : offsets[r+1]] and their log-weights.

    offsets int64 [B+1], ids int64 [E], log_weights float [E].
    """

    offsets: Tensor
    ids: Tensor
    log_weights: Tensor


class Proposal(Protocol):
    """Where candidates come from; every SampledSoftmax is one."""

    def propose(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Shared | Ragged:
        """Candidates for rows that have targets; hidden is detached, and normalised if the law is.

        All randomness comes from `random`, so that a run can be resumed.
        """


class Structure(Protocol):
    """What a head keeps about its rows (tables, a tree, an IVF) and follow() keeps up to date.

    weight [V, D] and bias [V, 1] (or None) are the parameters, detached.
    """

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Index all rows anew."""

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Index anew the rows that moved: int64 [N], ascending, each once."""

    def state_dict(self) -> dict[str, object]:
        """Tensors, ints, floats and dicts of them: all that a resumed run needs."""

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over what state_dict gave."""
