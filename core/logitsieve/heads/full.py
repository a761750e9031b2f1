"""The full softmax: all of W h + b, the oracle of all other heads.

Time O(B V D), memory O(B (D + K)).
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from logitsieve.api.requests import Sampling
from logitsieve.api.results import ArrayLike, Candidates, Float32, Float64, Int32
from logitsieve.heads._base.edits import Edits, no_edits
from logitsieve.heads._base.head import ready_request, refuse_first
from logitsieve.heads._base.kernel_head import BestWithLogZ, Head
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.sampling.gumbel import gumbel_sample
from logitsieve.kernels.sampling.log_z import dense_log_z
from logitsieve.kernels.topk.descriptor import LARGEST_NORM, UNIT32
from logitsieve.kernels.topk.exact_topk import dense_topk
from logitsieve.kernels.topk.merge import FIELDS


class Drawn(NamedTuple):
    ids: Int32  # [B, N]
    log_z: Float64  # [B, 4] TOP, VALUE, LOW and HIGH of kernels/topk/merge.py
    scanned: Int32  # [B] logits computed


class FullHead(Head):
    name = "full"
    max_error = 0.0
    compiled = dense_topk
    quick_best = True

    def _prepare(self) -> None:
        matrix = self._softmax.matrix
        self._describe(self._softmax.descriptor, matrix.row_bytes * matrix.vocab_size)

    def candidates(self, hidden_states: ArrayLike, k: int) -> Candidates:
        hidden_states, rows, _ = ready_request(hidden_states, k, self._dim, self._vocab_size)
        vocab_size = self._vocab_size
        offsets = np.arange(rows + 1, dtype=np.int64) * vocab_size
        ids = np.tile(np.arange(vocab_size, dtype=np.int32), rows)
        logits = self._softmax.logits(hidden_states, offsets, ids)
        return Candidates(offsets, ids, logits, np.full(rows, -np.inf, np.float32))

    def rough_log_z(self, hidden_states: Float32, k: int, scale: float) -> BestWithLogZ:
        """Return `best_with_log_z` with a wider interval: in half the time if W is in blocks."""
        return self._best_by_pass(hidden_states, k, scale, coded=True)

    def log_z(self, hidden_states: Float32, scale: float, edits: Edits | None = None) -> Float64:
        """Return [B, 4] log Z of all e^{scale x}: TOP, VALUE, LOW and HIGH."""
        rows = len(hidden_states)
        log_z = np.empty((rows, FIELDS))
        options = scale, *(edits or no_edits(rows)).arrays, log_z
        fill = partial(dense_log_z.entry(), self._address, hidden_states, *options)
        refuse_first(run_slices(fill, rows, self._threads))
        return log_z

    def quick_log_z(
        self, hidden_states: Float32, scale: float = 1.0, edits: Edits | None = None
    ) -> Float64:
        """Return `log_z` with a wider proven interval, mostly from float32 dots."""
        return self._pass(hidden_states, 0, scale, edits or no_edits(len(hidden_states)))[2]

    def quick_slack(self, hidden_states: Float32) -> Float64:
        """Estimate the error of a float32 logit, [B] nats."""
        largest = self._softmax.descriptor[LARGEST_NORM].view(np.float64)
        norms = np.linalg.norm(hidden_states.astype(np.float64), axis=1)
        return np.asarray(self._dim * UNIT32 * largest * norms)

    def draw(
        self, hidden_states: Float32, how: Sampling, scale: float = 1.0,
        edits: Edits | None = None, first_id: int = 0,
    ) -> Drawn:  # fmt: skip
        """Draw from softmax(scale x logits) for each row of hidden_states [B, D].

        log Z is right to 1e-12. Row i of W gets the noise of id first_id + i, with first_id a
        multiple of 32.
        """
        rows = len(hidden_states)
        ids, log_z = np.empty((rows, how.samples), np.int32), np.empty((rows, FIELDS))
        changed = (edits or no_edits(rows)).arrays
        asked = how.seeds, how.step, scale, *how.filters, first_id, *changed
        draw = partial(gumbel_sample.entry(), self._address, hidden_states, *asked, ids, log_z)
        refuse_first(run_slices(draw, rows, self._threads))
        return Drawn(ids, log_z, np.full(rows, self._vocab_size, np.int32))

    def warm(self) -> None:
        zeros, seeds = np.zeros((1, self._dim), np.float32), np.zeros(1, np.uint64)
        self.topk(zeros, 1)
        self._softmax.logits(zeros, np.zeros(2, np.int64), np.empty(0, np.int32))
        self.log_z(zeros, 1.0)
        self.quick_log_z(zeros)
        self.draw(zeros, Sampling(1, seeds))
