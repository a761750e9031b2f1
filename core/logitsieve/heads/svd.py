"""SVD-softmax: approximate logits from few rotated dimensions, exact logits of the best.

Shim, Lee, Choi, Boo, Sung 2017, SVD-Softmax: Fast Softmax Approximation on Large Vocabulary Neural
Networks: W = U S V^T, and the first columns of W V = U S against the first rows of V^T h.

Time O(W D + V W + S D) a row with a width of W and S candidates; memory V R + R D floats, R the
largest width.
"""

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.heads._base.head import Knob, by_knob
from logitsieve.heads._base.kernel_head import SelectingHead
from logitsieve.heads._base.spec import PartSpec, TensorSpec
from logitsieve.kernels.retrieval.preview import SCORES_AT_ONCE, preview_scores, preview_select


class SvdHead(SelectingHead):
    name = "svd"
    part = PartSpec(
        "svd",
        {
            "basis": TensorSpec("float32", ("R", "D")),
            "preview": TensorSpec("float32", ("V/16", "R", 16)),
        },
    )
    knob_table = by_knob(
        width=Knob(
            help="rotated dimensions of the preview: precision for time",
            default=32,
            high=65_535,
            tried=(8, 16, 32, 64, 128, 256),
        ),
        candidates=Knob(
            help="best rows of the preview that are evaluated: precision for time",
            default=128,
            tried=(32, 64, 128, 256, 512, 1024, 2048),
        ),
    )
    limits = by_knob(
        width=lambda arrays, _: len(arrays["basis"]),
        candidates=lambda _, softmax: softmax.vocab_size,
    )

    def _prepare(self) -> None:
        super()._prepare()
        self._select = preview_select.entry()

    def select(self, hidden_states: Float32, k: int) -> tuple[Int64, Int32]:
        rows, count = hidden_states.shape[0], int(self.knobs["candidates"])
        selected = np.empty((rows, count), np.int32)
        self._select(hidden_states, *self._preview(), selected)
        return np.arange(0, selected.size + 1, count), selected.reshape(-1)

    def _preview(self) -> tuple[Float32, Float32, Float32, int]:
        arrays, width = self._arrays, int(self.knobs["width"])
        return arrays["basis"], arrays["preview"], self._softmax.bias, width

    def scores(self, hidden_states: Float32) -> Float32:
        fours = -(-self._vocab_size // SCORES_AT_ONCE)
        scores = np.empty((len(hidden_states), fours * SCORES_AT_ONCE), np.float32)
        preview_scores(hidden_states, *self._preview(), scores)
        return scores[:, : self._vocab_size]
