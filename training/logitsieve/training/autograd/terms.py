"""All terms of a ragged batch in one list, for the kernels: targets first, then candidates.

Shape letters: B rows, D hidden size, V classes, P pairs of a row and a target, E candidates of all
rows, N = P + E terms, U different classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from logitsieve.api.results import Float64, Int64
from logitsieve.kernels.pool import run_slices
from logitsieve.training.autograd.classes import Law
from logitsieve.training.kernels.ragged import FORWARD, ROWS
from logitsieve.training.losses.proposal import Ragged
from logitsieve.training.losses.targets import Targets

Matrix = NDArray[Any]  # float32 or float64, as the weights are
_TERM = np.int64(32)  # bits of a term's number in a key; ids are above them


@dataclass(frozen=True)
class Terms:
    """pairs and offsets [B+1] count each row's; ids, log_weights, coefficients, factors [N]."""

    pairs: Int64
    offsets: Int64
    ids: Int64
    log_weights: Float64
    coefficients: Float64
    factors: Float64

    @classmethod
    def of(cls, targets: Targets, candidates: Ragged) -> Terms:
        """Terms whose coefficients are still to be computed."""
        pairs = np.searchsorted(targets.rows.numpy(), np.arange(targets.count + 1))
        ids = torch.cat([targets.classes, candidates.ids.cpu()]).numpy()
        log_weights = np.zeros(len(ids))
        log_weights[len(targets.classes) :] = candidates.log_weights.cpu().numpy()
        offsets = np.ascontiguousarray(candidates.offsets.cpu().numpy())
        return cls(pairs, offsets, ids, log_weights, np.empty(len(ids)), np.empty(len(ids)))

    def forward(
        self, hidden: Matrix, weight: Matrix, bias: Matrix, law: Law, wants: bool
    ) -> tuple[Float64, Matrix]:
        """(Losses [B], their gradient in hidden [B, D] if that is wanted). Fills coefficients."""
        losses, d_hidden = np.empty(len(hidden)), np.empty_like(hidden)
        compute = FORWARD[hidden.dtype.name]

        def fill(start: int, stop: int) -> int:
            compute(
                hidden,
                weight,
                bias,
                self.pairs,
                self.offsets,
                self.ids,
                self.log_weights,
                law.scale is not None,
                law.absolute,
                wants,
                losses,
                self.coefficients,
                self.factors,
                d_hidden,
                start,
                stop,
            )
            return 0

        run_slices(fill, len(hidden), torch.get_num_threads())
        return losses, d_hidden

    def backward(
        self, hidden: Matrix, weight: Matrix, gradient: Float64, normalised: bool
    ) -> tuple[torch.Tensor, Matrix, Float64]:
        """(Different ids [U], ascending, gradients of their weights [U, D] and biases [U])."""
        # Sorted as one number each: numpy sorts numbers many times faster than it finds an order.
        keys = np.sort((self.ids << _TERM) | np.arange(len(self.ids)))
        ids = keys >> _TERM
        starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1], [True]]))
        rows = self._rows()
        moved = self.coefficients * gradient[rows]
        sums = np.add.reduceat((moved * np.sign(self.factors))[keys & (2**32 - 1)], starts[:-1])
        values = np.empty((len(starts) - 1, hidden.shape[1]), hidden.dtype)
        compute, weights = ROWS[hidden.dtype.name], moved * self.factors

        def fill(start: int, stop: int) -> int:
            compute(hidden, weight, keys, starts, rows, weights, normalised, values, start, stop)
            return 0

        run_slices(fill, len(values), torch.get_num_threads())
        return torch.from_numpy(ids[starts[:-1]]), values, sums

    def _rows(self) -> Int64:
        count = np.arange(len(self.pairs) - 1)
        own, theirs = np.diff(self.pairs), np.diff(self.offsets)
        return np.concatenate([count.repeat(own), count.repeat(theirs)])
