import numpy as np

from logitsieve.kernels.sketch.sketch import norm_of


def test_the_norm_of_the_directions_is_not_below_the_true_one() -> None:
    for seed in range(20):
        drawn = np.random.default_rng(seed).standard_normal((37, 37)).astype(np.float16)
        true = np.sqrt((drawn.astype(np.longdouble) ** 2).sum())
        assert true <= norm_of(drawn) <= true * (1 + 1e-8)
