"""Quadratic kernel softmax: negatives in proportion to alpha (h.w)^2 + 1, by a tree.

Blanc, Rendle 2018, Adaptive Sampled Softmax with Kernel Based Sampling; Rawat et al. 2019, eq. 15.
"""

from __future__ import annotations

from typing import Unpack

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.losses.kernel_softmax import KernelSoftmax, TreeOptions
from logitsieve.training.losses.loss import at_least
from logitsieve.training.structures.features import QuadraticFeatures

ALPHA = 100.0


class QuadraticSoftmax(KernelSoftmax):
    """The softmax of |h.w|, no bias, which no server can serve: `export` raises.

    With `scale`, of |scale * cos(h, w)|, and the kernel is of the cosine, as in the comparison of
    Rawat et al. A branch costs D (D + 1) / 2: for small D.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        alpha: float = ALPHA,
        **options: Unpack[TreeOptions],
    ) -> None:
        at_least("in_features", in_features, 1)
        if not 0 < alpha < float("inf"):
            raise InvalidRequest("alpha", alpha, "a positive number")
        options["bias"] = False
        phi = QuadraticFeatures(in_features, alpha)
        super().__init__(in_features, n_classes, phi, absolute=True, **options)
