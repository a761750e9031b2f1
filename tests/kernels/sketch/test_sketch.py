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
    places = [sketch.DIRECTIONS, sketch.STRETCH, sketch.TRIANGLE]
    places += [sketch.COARSE, sketch.FINE, sketch.ORDER]
    names = ["directions", "stretch", "triangle", "coarse", "fine", "order"]
    assert descriptor[places].tolist() == [arrays[name].ctypes.data for name in names]
    sizes = [sketch.SPAN, sketch.COARSE_WIDTH, sketch.FINE_WIDTH]
    assert descriptor[sizes].tolist() == [20, 16, 64]
    limits = [sketch.KAPPA, sketch.Q, sketch.FINE_KAPPA, sketch.FINE_Q, sketch.LEFT]
    np.testing.assert_array_equal(descriptor[limits].view(np.float64), arrays["limits"])
    span = sketch.span_of(arrays)
    norms = [sketch.SIZE, sketch.SKEW, sketch.GAIN, sketch.SPREAD]
    assert descriptor[norms].view(np.float64).tolist() == list(span[1:])
    scales, rests = arrays["fine"][:, -sketch.EXTRA :].copy().view(np.float32).T
    assert descriptor[sketch.MOST_SCALE :][:1].view(np.float64)[0] >= scales.max()
    assert descriptor[sketch.MOST_REST :][:1].view(np.float64)[0] >= rests.max()


def test_norms_of_the_coordinates_are_not_below_the_true_ones() -> None:
    random = np.random.default_rng(0)
    directions, triangle = random.standard_normal((7, 20)), np.tril(random.standard_normal((7, 7)))
    stretch = random.uniform(0.1, 10, 20)
    arrays = {"directions": directions, "stretch": stretch, "triangle": triangle}
    span = sketch.span_of({name: array.astype(np.float32) for name, array in arrays.items()})
    long = np.longdouble
    ratios = arrays["directions"].astype(np.float32).astype(long) / stretch.astype(np.float32)
    lengths, entries = np.sqrt((ratios**2).sum(axis=1)), triangle.astype(np.float32).astype(long)
    apart = (ratios @ ratios.T - np.eye(7, dtype=long)).astype(np.float64)
    true = [
        np.sqrt((lengths**2).sum()),
        np.linalg.norm(apart, 2),
        np.sqrt((entries**2).sum()),
        np.sqrt(((np.abs(entries) @ np.maximum(lengths, 1)) ** 2).sum()),
    ]
    slack = [1 + 1e-8, np.inf, 1 + 1e-8, 1 + 1e-8]
    for value, least, most in zip(span[1:], true, slack, strict=True):
        assert least <= value <= least * most
