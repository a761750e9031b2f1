"""A static list: every query evaluates the rows that are most often among the best.

Zhao et al. 2025, FR-Spec. Time O(n D) a row; memory V ids.
"""

import numpy as np

from logitsieve.heads._base.head import Knob, by_knob
from logitsieve.heads._base.kernel_head import ClusteredHead
from logitsieve.heads._base.spec import PartSpec, TensorSpec, all_different


class FrequencyHead(ClusteredHead):
    name = "frequency"
    part = PartSpec("frequency", {"ids": TensorSpec("int32", ("V",), "ids", "V")}, all_different)
    probed = "n"
    knob_table = by_knob(
        n=Knob(
            help="most frequent rows to look at: precision for time",
            default=1024,
            tried=(64, 128, 256, 512, 1024, 2048, 4096, 8192),
        )
    )
    limits = by_knob(n=lambda _, softmax: softmax.vocab_size)

    def _apply_knobs(self) -> None:
        one = {
            "centroids": np.zeros((1, self._softmax.dim), np.float32),
            "offsets": np.array([0, self.knobs["n"]], np.int32),
            "ids": self._arrays["ids"],
        }
        self._describe_lists(one, 1)
