import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import dots_1x4, dots_4x4_at_once, dots_4x4_in_quarters, row_of
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1])")
def four_by_four(weight, hidden, blocked, single):
    dim = hidden.shape[1]
    w, h = pointer(weight), pointer(hidden)
    rows = 0, dim, 2 * dim, 3 * dim
    block = dots_4x4_at_once(w, *rows, h, *rows, dim)
    quarters = dots_4x4_in_quarters(w, *rows, h, *rows, dim)
    for q in range(4):
        line = dots_1x4(w, 0, dim, 2 * dim, 3 * dim, row_of(h, q, dim), dim)
        for i in range(4):
            single[i, q] = line[i]
    for q in range(4):
        blocked[0, q], blocked[1, q] = block[0][q], block[1][q]
        blocked[2, q], blocked[3, q] = block[2][q], block[3][q]
        blocked[4, q], blocked[5, q] = quarters[0][q], quarters[1][q]
        blocked[6, q], blocked[7, q] = quarters[2][q], quarters[3][q]


@pytest.mark.parametrize("dim", [1, 7, 15, 16, 17, 31, 33, 64, 200, 1500])
def test_float32_dots_stay_within_the_bound(dim: int) -> None:
    """Values after the end of a row are not read."""
    random = np.random.default_rng(dim)
    longer = np.full((2, 20, dim), np.nan, np.float32)
    longer[:, :4] = random.standard_normal((2, 4, dim))
    both, single = np.empty((8, 4), np.float32), np.empty((4, 4), np.float32)
    four_by_four(*longer, both, single)
    (weight, hidden), blocked, quarters = longer[:, :4], both[:4], both[4:]
    np.testing.assert_array_equal(quarters, blocked)
    true = weight.astype(np.float64) @ hidden.astype(np.float64).T
    norms = np.linalg.norm(weight, axis=1)[:, None] * np.linalg.norm(hidden, axis=1)
    for found in (blocked, single):
        assert (np.abs(found - true) <= dim * 2.0**-24 * norms * 1.01).all()
