"""Rows of hidden as the sketch codes them: near their coordinates, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.kernels.encode_query import SCALE
from logitsieve.gpu.kernels.status import REFUSED, WANTED
from logitsieve.gpu.matrix import sketch_on
from logitsieve.gpu.plans.certified import EncodedQueries
from tests.gpu.softmaxes import on_gpu, tensor
from tests.synthetic import certified_arrays, make_hidden, make_softmax


@pytest.mark.parametrize("rows", [1, 3])
def test_codes_are_those_of_the_coordinates(rows: int) -> None:
    softmax, hidden = make_softmax(40, 70), make_hidden(rows, 70)
    arrays, (_, matrix) = certified_arrays(softmax), on_gpu(softmax)
    coded = EncodedQueries(matrix, sketch_on(matrix.weight.device, arrays), tensor(hidden))
    coded.run()
    assert coded.status.tolist() == [int(WANTED)] * rows
    products = hidden.astype(np.float64) @ arrays["directions"].T.astype(np.float64)
    coordinates = products @ arrays["triangle"].T.astype(np.float64)
    np.testing.assert_allclose(coded.products.cpu().numpy(), products, atol=1e-5)
    np.testing.assert_allclose(coded.turned.cpu().numpy(), coordinates, atol=1e-5)
    high, low = coded.planes.cpu().numpy().astype(np.int64).transpose(1, 0, 2)
    codes, count = 128 * high + low, coded.sketch.coded
    scale = coded.factors[:, int(SCALE), None].cpu().numpy()
    assert (np.abs(scale * codes[:, :count] - coordinates[:, :count]) <= 0.51 * scale).all()
    assert not codes[:, count:].any()


def test_rows_that_are_not_finite_are_refused_and_zeros_are_not() -> None:
    softmax, hidden = make_softmax(40, 20), make_hidden(4, 20)
    hidden[1, 3], hidden[2, 0], hidden[3] = np.nan, 3e38, 0
    arrays, (_, matrix) = certified_arrays(softmax), on_gpu(softmax)
    coded = EncodedQueries(matrix, sketch_on(matrix.weight.device, arrays), tensor(hidden))
    coded.run()
    assert coded.status.tolist() == [int(state) for state in (WANTED, REFUSED, REFUSED, WANTED)]
    assert not coded.planes[3].any()
    assert coded.factors[3].isfinite().all()
