"""Top-k softmax: the loss over the k largest logits and the target, and nothing for the rest.

The baseline "TopK-softmax" of papers/003. All logits are computed to find the k, so that only the
backward pass is cheaper than the full softmax's. Biased: what is left out of Z is never seen.

Shape letters: B rows, D hidden size, V classes, K classes of a row, M targets of a row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Int32, Int64
from logitsieve.training.autograd.rng import Step
from logitsieve.training.losses.best import BestSoftmax

CHUNK = 8192  # classes whose logits are held at once


class TopKSoftmax(BestSoftmax):
    """n_uniform: 0; with more it is LSH Softmax with a perfect search."""

    def default_uniform(self, k: int) -> int:
        """None."""
        return 0

    def best_of_rows(
        self, hidden_BD: Tensor, targets_BM: Int64, random: Step
    ) -> tuple[Int64, Int32]:
        """See BestSoftmax."""
        best_BK = self._best(hidden_BD)
        own_BK = (best_BK[:, :, None] == targets_BM[:, None, :]).any(-1)
        offsets = np.concatenate([[0], np.cumsum((~own_BK).sum(1))])
        return offsets, best_BK[~own_BK].astype(np.int32)

    def best_of_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        """See BestSoftmax."""
        ids, votes = np.unique(self._best(hidden_BD), return_counts=True)
        other = ~np.isin(ids, targets_BM)
        ids, votes = ids[other], votes[other]
        best = ids[np.argsort(-votes, kind="stable")[: self.max_shared]]
        return np.sort(best).astype(np.int32)

    def _best(self, hidden_BD: Tensor) -> Int64:
        """int64 [B, K]: the ids of the largest logits, ascending; no more than a chunk is held."""
        weight, bias = self.classes.detached()
        values = hidden_BD.new_empty(len(hidden_BD), 0)
        ids = torch.empty(len(hidden_BD), 0, dtype=torch.int64, device=hidden_BD.device)
        for start in range(0, self.n_classes, CHUNK):
            x = self.logits_of(hidden_BD, weight[start : start + CHUNK], bias, start)
            here = torch.arange(start, start + x.shape[1], device=x.device).expand_as(x)
            values, ids = torch.cat([values, x], 1), torch.cat([ids, here], 1)
            values, places = values.topk(min(self.k, values.shape[1]), dim=1, sorted=False)
            ids = ids.gather(1, places)
        found: Int64 = ids.sort(dim=1).values.cpu().numpy()
        return found

    def logits_of(
        self, hidden_BD: Tensor, weight: Tensor, bias: Tensor | None, start: int
    ) -> Tensor:
        """Logits of the classes from `start` on whose rows `weight` holds."""
        weight = weight.to(hidden_BD.dtype)
        if self.law.scale is not None:
            weight = torch.nn.functional.normalize(weight, dim=-1)
        x = hidden_BD @ weight.T
        if bias is not None:
            x += bias[start : start + len(weight)].view(-1).to(x.dtype)
        return x
