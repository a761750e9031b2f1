from collections.abc import Iterator

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder.fit.sketch import Widths
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.intervals.intervals import BATCH, bound_all, intervals_at, refine_batch
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, nowhere, pointer, size_of
from logitsieve.kernels.sketch import sketch
from logitsieve.kernels.sketch.encode_query import ALL, FACTORS, FINE_ALL, MARGIN
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.topk.descriptor import widen_hidden
from tests.oracle import logits64
from tests.synthetic import basis_of, coded_rows, encode, make_hidden, matrix_of, rotated


@kernel("(int64, float32[::1], int32[::1], float32[:,::1], float64[::1])")
def estimate(address, hidden, places, estimates, factors):
    """Fill estimates [2, places] by coarse and by fine codes, in the sketch's order, and factors.

    Returns the norm of hidden, or less than 0 if it is refused.
    """
    descriptor = int64_pointer(address)
    size = size_of(intervals_at(descriptor, nowhere(), pointer(places)))
    scratch = np.empty(size, np.float64)
    intervals = intervals_at(descriptor, pointer(scratch), pointer(places))
    norm = widen_hidden(descriptor, pointer(hidden), intervals.wide)
    if norm >= 0:
        bound_all(descriptor, intervals, pointer(hidden), norm)
        for place in range(estimates.shape[1]):
            estimates[0, place] = intervals.estimates[place]
        rows, most = sketch_at(descriptor).rows, BATCH - LANES
        for first in range(0, rows, most):
            count = min(most, rows - first)
            for i in range(count):
                intervals.batch[i] = first + i
            refine_batch(descriptor, intervals, count)
        for place in range(estimates.shape[1]):
            estimates[1, place] = intervals.estimates[place]
        for i in range(FACTORS):
            factors[i] = intervals.coded.factors[i]
    keep_alive(scratch)
    keep_alive(places)
    return norm


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


KINDS = ("gaussian", "decaying", "rank two", "far from zero", "equal rows", "both", "zeros")


class Errors:
    """Estimates of all logits by both codings, and what they are off by, beside its bound."""

    def __init__(self, softmax: Softmax, arrays: dict[str, np.ndarray]) -> None:
        self.softmax, self.arrays = softmax, arrays
        self._descriptor = sketch.sketch_descriptor(softmax.descriptor, arrays)
        self._places = np.argsort(arrays["order"]).astype(np.int32)

    def of(self, context: np.ndarray) -> np.ndarray | None:
        """[2, 2] for each coding: the norm of all errors, each less the margin, and its bound."""
        size = -(-self.softmax.vocab_size // LANES) * LANES
        estimates, factors = np.empty((2, size), np.float32), np.empty(FACTORS)
        address = self._descriptor.ctypes.data
        if estimate.entry()(address, context, self._places, estimates, factors) < 0:
            return None
        logits = logits64(self.softmax.weight, self.softmax.bias, context[None])[0]
        off = np.abs(estimates[:, self._places].astype(np.float64) - logits)
        norms = np.linalg.norm(np.maximum(off - factors[MARGIN], 0), axis=1)
        return np.stack([norms, factors[[ALL, FINE_ALL]]], axis=1)

    def attacks(self, random: np.random.Generator) -> Iterator[np.ndarray]:
        """Contexts along which the three matrices of each coding are longest, and others."""
        arrays, (V, D) = self.arrays, self.softmax.weight.shape
        stretch = arrays["stretch"].astype(np.float64)
        basis, weight = basis_of(arrays), self.softmax.weight.astype(np.float64) / stretch
        inverse, (coded, _) = np.linalg.pinv(basis), coded_rows(arrays, fine=True)
        turned = weight @ inverse
        outside = weight - turned @ basis
        off = turned[:, : coded.shape[1]] - coded
        width = arrays["coarse"].shape[1] // LANES - 12
        for each, first in ((off, 0), (off[:, :width], 0), (turned, 0), (turned[:, width:], width)):
            if each.size:
                coordinates = np.zeros(len(basis))
                leading = np.linalg.svd(each, full_matrices=False)[2][0]
                coordinates[first : first + len(leading)] = leading
                yield inverse @ coordinates / stretch
        yield np.linalg.svd(outside, full_matrices=False)[2][0] / stretch
        row, other = self.softmax.weight[random.integers(V, size=2)].astype(np.float64)
        yield from (row, row - other, random.standard_normal(D), np.eye(D)[random.integers(D)])
        yield inverse @ turned[random.integers(V)] / stretch + 1e-6 * random.standard_normal(D)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (9, 33), (300, 90), (2100, 24), (500, 64)])
def test_no_errors_are_longer_than_the_norm_of_all(kind: str, size: tuple[int, int]) -> None:
    """All logits together, by both codings, at all scales; each rounds within the margin."""
    random = np.random.default_rng(size[0])
    bias = random.standard_normal(size[0]).astype(np.float32)
    softmax = Softmax(matrix_of(kind, *size), bias)
    seen = make_hidden(64, size[1]) * np.geomspace(1, 0.1, size[1], dtype=np.float32)
    order = random.permutation(size[0]).astype(np.int32)
    tried = 0
    for count, widths in ((size[1], Widths(16, 128)), (-(-size[1] // 2), Widths(32, 64))):
        turning, stretch = rotated(softmax, seen, count)
        errors = Errors(softmax, encode(softmax, turning, widths, order, stretch))
        for attack in errors.attacks(random):
            for scale in (1e-30, 1e-3, 1.0, 30.0, 1e18):
                context = scale * attack / max(float(np.abs(attack).max()), 1e-300)
                numbers = errors.of(context.astype(np.float32))
                if numbers is None:
                    continue
                tried += 1
                for norm, bound in numbers:
                    assert norm <= bound
    assert tried > 50


def test_the_norm_of_all_errors_is_not_far_above_them() -> None:
    """Nearly reached along the errors of the codes; a few times the errors of usual contexts."""
    random = np.random.default_rng(0)
    scales = np.exp(-4 * np.arange(64) / 64)
    weight = (random.standard_normal((3000, 64)) * scales).astype(np.float32)
    softmax = Softmax(weight, random.standard_normal(3000).astype(np.float32))
    hidden = (random.standard_normal((40, 64)) * scales * 5).astype(np.float32)
    turning, stretch = rotated(softmax, hidden, 64)
    order = np.arange(3000, dtype=np.int32)
    errors = Errors(softmax, encode(softmax, turning, Widths(32, 128), order, stretch))
    numbers = [errors.of(context) for context in hidden]
    ratios = np.array([each[:, 1] / each[:, 0] for each in numbers if each is not None])
    assert len(ratios) == 40
    assert (np.median(ratios, axis=0) < 2.5).all()
    along = next(errors.attacks(random)).astype(np.float32)
    assert (found := errors.of(100 * along)) is not None
    assert found[1, 0] > 0.9 * found[1, 1]
