"""W and its sketch on a GPU: the numbers of the index, and limits that no row exceeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.gpu.device import device_named
from logitsieve.gpu.matrix import matrix_on, sketch_on
from logitsieve.kernels.sketch.sketch import EXTRA
from tests.gpu.softmaxes import TYPES, on_gpu
from tests.stored import BLOCKS, reference, stored_softmax
from tests.synthetic import certified_arrays, make_softmax


@pytest.mark.parametrize("dtype", TYPES)
def test_limits_of_a_matrix(dtype: str) -> None:
    stored, matrix = on_gpu(make_softmax(5000, 6), dtype)
    assert (matrix.rows, matrix.dim) == (5000, 6)
    norms = np.linalg.norm(stored.weight.astype(np.float64), axis=1)
    largest, bias, slack, lost = matrix.limits.tolist()
    assert norms.max() <= largest <= norms.max() * (1 + 1e-9)
    assert bias == np.abs(stored.bias).max()
    assert 6 * 2.0**-24 * largest < slack < 1e-3 * largest
    assert 0 < lost < 1e-30
    values = matrix.weight.view(torch.bfloat16) if dtype == "bfloat16" else matrix.weight
    np.testing.assert_array_equal(values.float().cpu().numpy(), stored.weight)


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_become_their_values(kind: str) -> None:
    softmax = stored_softmax(kind, 4100)
    matrix = matrix_on(device_named("cuda"), softmax.matrix, softmax.bias)
    np.testing.assert_array_equal(matrix.weight.cpu().numpy(), reference(softmax.matrix))


def test_a_sketch_holds_the_fine_codes_and_what_lies_beside_them() -> None:
    softmax = make_softmax(300, 24)
    arrays = certified_arrays(softmax)
    _, matrix = on_gpu(softmax)
    sketch = sketch_on(matrix.weight.device, arrays)
    fine = arrays["fine"]
    codes = sketch.codes.cpu().numpy().astype(int)
    np.testing.assert_array_equal(codes[:, :-EXTRA], fine[:, :-EXTRA].astype(int) - 128)
    assert not codes[:, -EXTRA:].any()
    beside = fine[:, -EXTRA:].copy().view(np.float32)
    np.testing.assert_array_equal(sketch.scales.cpu().numpy(), beside[:, 0])
    np.testing.assert_array_equal(sketch.rests.cpu().numpy(), beside[:, 1])
    assert (sketch.width, sketch.coded) == (fine.shape[1], min(24, fine.shape[1] - EXTRA))
    kappa, length, left, scale, rest = sketch.terms.tolist()[:5]
    assert [kappa, length, left] == arrays["limits"][2:].tolist()
    assert [scale, rest] == beside.max(axis=0).tolist()
