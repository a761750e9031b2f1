"""The base of all proposals: methods that draw the negatives of a sampled softmax."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from logitsieve.training.autograd.batch import Candidates, Targets
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.structures.track import RowIndex
from logitsieve.utils.options import check_ranges


@dataclass(kw_only=True, eq=False)
class Proposal(ABC):
    """A method that draws candidates; its fields are its options.

    index: of the rows of W, if `propose` searches any; the loss updates it. unservable: the name of
    the trained model if it is not a softmax of h.w + b.
    """

    def __post_init__(self) -> None:
        self.index: RowIndex | None = None
        self.unservable: str | None = None
        check_ranges(self)

    def start(self, classes: ClassWeights, seed: int) -> None:
        """Prepare to draw for `classes`, which may move or be exchanged by a tie.

        Make `index`, if any; the loss fills it. seed: of hash functions and features.
        """
        self.classes = classes

    @property
    def n_classes(self) -> int:
        return self.classes.num_embeddings

    @abstractmethod
    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> Candidates:
        """Return candidates for rows that have targets, and minus their log-expected counts.

        hidden is detached, and normalised if the logits are. Use no randomness but `rng`.
        """
