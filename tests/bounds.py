"""The bounds of all logits by which a sketch decides."""

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.heads import SketchHead
from logitsieve.kernels.sketch.certified_topk import certified_bounds


def bounds_of(head: SketchHead, row: Float32, k: int = 1) -> tuple[Int32, Float32, Float32]:
    """Return the ids [S] whose logits `topk` computes for `row` [1, D], and [V] lower and upper.

    Of these ids both are the logit.
    """
    candidates = head.candidates(row, k)
    bounds = np.empty((2, head.vocab_size), np.float32)
    certified_bounds(head._address, row, bounds[0], bounds[1])
    bounds[:, candidates.ids] = candidates.logits
    return candidates.ids, bounds[0], bounds[1]
