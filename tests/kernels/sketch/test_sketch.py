"""A sketch's descriptor holds every array and constant of the part at its place."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.sketch import sketch
from tests.synthetic import certified_arrays, make_softmax


def test_fields_are_where_kernels_read_them() -> None:
    softmax = make_softmax(50, 20)
    arrays = certified_arrays(softmax)
    descriptor = sketch.sketch_descriptor(softmax.descriptor, arrays)
    np.testing.assert_array_equal(descriptor[: softmax.descriptor.size], softmax.descriptor)
    places = [sketch.BASIS, sketch.COARSE, sketch.FINE, sketch.ORDER]
    names = ["basis", "coarse", "fine", "order"]
    assert descriptor[places].tolist() == [arrays[name].ctypes.data for name in names]
    assert descriptor[[sketch.COARSE_WIDTH, sketch.FINE_WIDTH]].tolist() == [16, 64]
    limits = [sketch.KAPPA, sketch.Q, sketch.FINE_KAPPA, sketch.FINE_Q, sketch.LEFT]
    np.testing.assert_array_equal(descriptor[limits].view(np.float64), arrays["limits"])
    frobenius = descriptor[sketch.FROBENIUS :][:1].view(np.float64)[0]
    assert frobenius >= np.linalg.norm(arrays["basis"].astype(np.float64))
    scales, rests = arrays["fine"][:, -sketch.EXTRA :].copy().view(np.float32).T
    assert descriptor[sketch.MOST_SCALE :][:1].view(np.float64)[0] >= scales.max()
    assert descriptor[sketch.MOST_REST :][:1].view(np.float64)[0] >= rests.max()
