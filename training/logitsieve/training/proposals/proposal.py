"""The base of all proposals: what a sampled softmax asks of the method that draws its negatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from logitsieve.training.autograd.batch import Candidates, Targets
from logitsieve.training.autograd.classes import ClassWeights, LogitForm
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.structures.track import RowIndex
from logitsieve.utils.options import check_ranges


@dataclass(kw_only=True, eq=False)
class Proposal(ABC):
    """A method that draws candidates; its options are the fields of a dataclass.

    `SampledSoftmax` copies the proposal that it is given and starts the copy, so the same options
    can be given to several losses. InvalidRequest for an option out of range.

    index: the index of the rows of W that `propose` searches, if any; the loss keeps it up to date
    and saves it. unservable: the name of what is trained if that is no softmax of h.w + b.
    """

    def __post_init__(self) -> None:
        self.index: RowIndex | None = None
        self.unservable: str | None = None
        check_ranges(self)

    def start(self, classes: ClassWeights, form: LogitForm, seed: int) -> None:
        """Prepare to draw for `classes`; `index`, if any, is made here and filled by the loss.

        classes: the weights as they are trained; they may move, or be exchanged by a tie. seed: of
        hash functions and features; draws come from `rng` of `propose`. InvalidRequest for options
        that do not fit.
        """
        self.classes, self.form = classes, form

    @property
    def n_classes(self) -> int:
        return self.classes.num_embeddings

    @abstractmethod
    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> Candidates:
        """Return candidates for rows that have targets, and minus their log-expected counts.

        hidden is detached, and normalised if the logits are. All randomness comes from `rng`, so a
        run can be resumed. O(B M + E) memory, never [B, V] for a sub-linear method.
        """
