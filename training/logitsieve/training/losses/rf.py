"""RF-softmax: negatives in proportion to a Gaussian kernel, by random features and a tree.

Rawat et al. 2019, Sampled Softmax with Random Fourier Features, section 3.2.
"""

from __future__ import annotations

from typing import Unpack

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.rng import LARGEST_SEED
from logitsieve.training.losses.kernel_softmax import KernelSoftmax, TreeOptions
from logitsieve.training.losses.loss import at_least
from logitsieve.training.structures.features import FEATURES

SCALE = 1 / 0.3**2  # tau: the temperature 0.3 of section 4.1 is 1 / sqrt(tau)
LARGEST_FEATURES = 1 << 16
NU = 4.0  # below tau (Remark 2); T = 1 / sqrt(nu) = 0.5 in Figure 1
LARGEST_NU = 350.0  # e^{-2 nu}, below which no class's mass falls, is a number still


class RFSoftmax(KernelSoftmax):
    """x = scale * cos(h, w), no bias; branches by exp(nu cos(h, w)), in estimation.

    n_features: R, the number of random directions (D in the paper). nu: larger is nearer to the
    softmax and noisier. features: "structured" (SORF), "fourier" or "positive".
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        n_features: int = 512,
        nu: float = NU,
        features: str = "structured",
        **options: Unpack[TreeOptions],
    ) -> None:
        at_least("in_features", in_features, 1)
        at_least("n_features", n_features, 1, LARGEST_FEATURES)
        if not 0 < nu <= LARGEST_NU:
            raise InvalidRequest("nu", nu, f"a positive number, at most {LARGEST_NU:g}")
        if features not in FEATURES:
            raise InvalidRequest("features", features, ", ".join(FEATURES))
        options.setdefault("scale", SCALE)
        if options["scale"] is None:
            raise InvalidRequest("scale", None, "a positive number: the kernel needs unit vectors")
        seed = options.get("seed", 0)
        at_least("seed", seed, 0, LARGEST_SEED)
        phi = FEATURES[features](in_features, n_features, nu, seed)
        super().__init__(in_features, n_classes, phi, **options)
