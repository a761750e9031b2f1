"""The learned screen (L2S): the nearest cluster's candidate list instead of the vocabulary.

Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen for Fast Softmax Inference on Large Vocabulary
Neural Networks: t = argmax_c v_c . h, then exact logits of the words in list t (section 3).
"""

from functools import partial
from typing import Self

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.heads._base.head import Knob, by_knob, refuse_first
from logitsieve.heads._base.kernel_head import BestWithLogZ, ClusteredHead, empty_best
from logitsieve.heads._base.spec import PartSpec, TensorSpec, no_empty_lists, no_id_twice
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.screen.screen_topk import screen_log_z, screen_routes


class ScreenHead(ClusteredHead):
    """Evaluates the candidate lists of the `probes` best clusters of each row.

    The fallback answers rows that are far from every fitted context: their cosine to the best
    centroid is below `escalate` (times the cluster's `reaches`, if present). Not in the paper.
    """

    name = "screen"
    part = PartSpec(
        "screen",
        {
            "centroids": TensorSpec("float32", ("C", "D")),
            "reaches": TensorSpec("float32", ("C",), "factors", optional=True),
            "offsets": TensorSpec("int32", ("C+1",), "offsets", "S"),
            "ids": TensorSpec("int32", ("S",), "ids", "V"),
            "outside_rows": TensorSpec("float32", ("C", "D"), optional=True),
            "outside_biases": TensorSpec("float32", ("C",), optional=True),
            "outside_spreads": TensorSpec("float32", ("C",), "factors", optional=True),
        },
        structure=no_empty_lists,
        values=no_id_twice,
    )
    probed = "probes"
    knob_table = by_knob(
        probes=Knob(
            help="best clusters to unite: precision for time", default=1, high=64, tried=(1, 2, 4)
        ),
        escalate=Knob(
            help="rows of a lower cosine to their centroid go to the fallback: time",
            default=-1.0,
            low=-1.0,
            high=1.0,
            whole=False,
            tried=(-1.0, 0.4, 0.6, 0.8),
        ),
        log_z_error=Knob(
            help="rows with a larger standard error of log Z (nats) go to the fallback: beam steps",
            default=0.02,
            low=0.0,
            high=1.0,
            whole=False,
            tried=(0.01, 0.02, 0.05),
        ),
    )
    limits = by_knob(probes=lambda arrays, _: len(arrays["centroids"]))

    def _prepare(self) -> None:
        self.estimates_log_z = "outside_rows" in self._arrays

    def masked(self, mask: Int32) -> Self:
        """See `Head.masked`. The fit of log Z holds for all ids, so a mask ends the estimate."""
        other = super().masked(mask)
        other.estimates_log_z = False
        return other

    def best_with_log_z(self, hidden_states: Float32, k: int, scale: float = 1.0) -> BestWithLogZ:
        """Estimate log Z from the logits of the best cluster's list, and a fit for all other ids.

        The log of the others' sum is fitted by outside_rows[c] . h + outside_biases[c]. Not in the
        paper.
        """
        if not self.estimates_at(scale, k):
            return super().best_with_log_z(hidden_states, k, scale)
        rows = len(hidden_states)
        best = empty_best(rows, k)
        fill = partial(screen_log_z.entry(), self._address, hidden_states, *best[:4], best.scanned)
        refuse_first(run_slices(fill, rows, self._threads))
        if (rest := np.flatnonzero(best.scanned < 0)).size:
            assert self._fallback
            found = self._fallback.best_with_log_z(hidden_states[rest], k)
            best.put(rest, found)
            best.fallback[rest] = True
        return best

    def clusters(self, hidden_states: Float32) -> Int32:
        """Return the best cluster of each row of hidden_states [B, D], or C if it escalates."""
        one, clusters = self.with_knobs(probes=1), np.empty((len(hidden_states), 1), np.int32)
        refuse_first([screen_routes(one._address, hidden_states, clusters)])
        return clusters[:, 0]
