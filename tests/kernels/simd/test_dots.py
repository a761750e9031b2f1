import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import dots_1x4, dots_at_once, dots_in_parts, row_of
from logitsieve.kernels.simd.lanes import store_each
from logitsieve.kernels.simd.pointers import pointer, shift


@kernel("(float32[:,::1], float32[:,::1], float32[:,:,::1], float32[:,::1])")
def four_by_few(weight, hidden_states, few, single):
    """few [2, 10, 4]: for 1, then for 2, 3, 4 hidden states, in both ways; single [4, 4]."""
    dim = hidden_states.shape[1]
    w, h = pointer(weight), pointer(hidden_states)
    rows = 0, dim, 2 * dim, 3 * dim
    at_once, in_parts = pointer(few), shift(pointer(few), 40)
    for count in range(1, 5):
        place = 2 * count * (count - 1)
        dots_at_once(w, *rows, h, *rows, count, dim, shift(at_once, place))
        dots_in_parts(w, *rows, h, *rows, count, dim, shift(in_parts, place))
    for q in range(4):
        store_each(shift(pointer(single), 4 * q), dots_1x4(w, *rows, row_of(h, q, dim), dim))


@pytest.mark.parametrize("dim", [1, 7, 15, 16, 17, 31, 33, 64, 200, 1500])
def test_float32_dots_stay_within_the_bound_whatever_their_number(dim: int) -> None:
    """Values after the end of a row are not read."""
    random = np.random.default_rng(dim)
    longer = np.full((2, 20, dim), np.nan, np.float32)
    longer[:, :4] = random.standard_normal((2, 4, dim))
    few, single = np.empty((2, 10, 4), np.float32), np.empty((4, 4), np.float32)
    four_by_few(*longer, few, single)
    for found in few:
        np.testing.assert_array_equal(found, single[[0, 0, 1, 0, 1, 2, 0, 1, 2, 3]])
    weight, hidden_states = longer[:, :4]
    true = hidden_states.astype(np.float64) @ weight.astype(np.float64).T
    norms = np.linalg.norm(hidden_states, axis=1)[:, None] * np.linalg.norm(weight, axis=1)
    assert (np.abs(single - true) <= dim * 2.0**-24 * norms * 1.01).all()
