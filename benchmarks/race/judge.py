"""The judge: which answered ids are among the k best logits, computed here, in float64.

An id counts if its logit is not below the k-th best by more than 1e-12 of the scale
||w|| ||h|| + |b|: equal words may stand for each other. Ids that are repeated or out of range are
refused, so no method can gain by them. Shape letters: N contexts, D hidden size, V vocabulary,
K answers.
"""

from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.utils.options import Progress

TOLERANCE = 1e-12
BLOCK_BYTES = 1 << 28  # of float64 logits at once


class Score(NamedTuple):
    """Which answers are right, bool [N, k] by k."""

    hits: dict[int, np.ndarray]

    def precision(self, rows: slice | np.ndarray = slice(None)) -> dict[int, float]:
        """P@k by k, over some of the contexts."""
        return {k: float(hits[rows].mean()) for k, hits in self.hits.items()}


class Judge:
    """Knows the k-th best float64 logit of each context."""

    def __init__(
        self, softmax: Softmax, hidden_states: Float32, ks: tuple[int, ...], progress: Progress
    ) -> None:
        self._softmax, self.hidden_states, self.ks = softmax, hidden_states, ks
        self._thresholds = {k: np.empty(len(hidden_states)) for k in ks}
        norm_N = np.linalg.norm(hidden_states.astype(np.float64), axis=1)
        longest = float(np.linalg.norm(softmax.weight, axis=1).max())
        self._tolerance_N = TOLERANCE * (norm_N * longest + float(abs(softmax.bias).max()))
        weight_VD, bias = softmax.weight.astype(np.float64), softmax.bias.astype(np.float64)
        rows = max(1, BLOCK_BYTES // 8 // len(bias))
        for start in range(0, len(hidden_states), rows):
            logits = hidden_states[start : start + rows].astype(np.float64) @ weight_VD.T + bias
            for k in ks:
                kth = np.partition(logits, -k, axis=1)[:, -k]
                self._thresholds[k][start : start + rows] = kth
            progress("judge", min(start + rows, len(hidden_states)), len(hidden_states))

    def score(self, ids_NK: np.ndarray) -> Score:
        """Score answers to all contexts; -1 for an id not found; K is the largest of `ks`."""
        most = max(self.ks)
        if ids_NK.shape != (len(self.hidden_states), most):
            raise ValueError(f"ids {list(ids_NK.shape)}, wanted {[len(self.hidden_states), most]}")
        if ids_NK.min() < -1 or ids_NK.max() >= self._softmax.vocab_size:
            raise ValueError(f"ids {ids_NK.min()} .. {ids_NK.max()}, allowed -1 .. V - 1")
        ordered = np.sort(ids_NK, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise ValueError("ids are repeated within a row")
        logits_NK = self._logits(ids_NK)
        return Score(
            {
                k: logits_NK[:, :k] >= (self._thresholds[k] - self._tolerance_N)[:, None]
                for k in self.ks
            }
        )

    def _logits(self, ids_NK: np.ndarray) -> np.ndarray:
        """float64 logits of the answers; -inf where there is none."""
        rows_NKD = self._softmax.weight[ids_NK]
        logits = np.einsum(
            "nkd,nd->nk", rows_NKD, self.hidden_states, dtype=np.float64, casting="same_kind"
        )
        logits += self._softmax.bias[ids_NK]
        logits[ids_NK < 0] = -np.inf
        return np.asarray(logits)
