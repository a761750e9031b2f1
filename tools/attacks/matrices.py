"""Softmaxes and contexts that are hard on what answers without computing everything.

Shape letters: B batch rows, D hidden size, V vocabulary, G groups of 16 rows.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Float32, Float64
from logitsieve.heads import SketchHead, Softmax
from logitsieve.index.sketch_rows import codings_of
from logitsieve.index_builder.fit.sketch import RotatedRows, code, rotate, rounded
from logitsieve.kernels.sketch.sketch import widths_of
from tests.synthetic import rotated, sketch_head

LARGEST = 1e35  # of a logit without its bias: rows that may exceed 1e38 are refused
DIMS = (1, 2, 7, 16, 24, 31, 64, 100, 129, 200)
WIDTHS = 16, 32, 64, 128  # coordinates in eight bits, also more than there are


class Sketched(NamedTuple):
    """A softmax with its sketch."""

    softmax: Softmax
    turned: RotatedRows
    arrays: dict[str, np.ndarray]

    @property
    def head(self) -> SketchHead:
        return sketch_head(self.softmax, self.arrays)

    def biased(self, bias: Float32) -> "Sketched":
        """The same rows with other biases, of which a sketch holds nothing."""
        return self._replace(softmax=Softmax(self.softmax.weight, bias))

    def decoded(self, last: bool) -> tuple[Float64, Float64]:
        """(s_i q_i [V, M], s_i [V]) of the first coordinates and of the first or the last level."""
        first, *levels = codings_of(self.arrays, np.arange(self.softmax.vocab_size))
        level = levels[2 if last else 0]
        coded = [each.codes * each.scales[:, None] for each in (first, level)]
        return np.hstack(coded), level.scales


def sketched(softmax: Softmax, random: Generator, first: int | None = None) -> Sketched:
    """A sketch over any coordinates, for the proof holds for all of them."""
    first = first or int(random.choice(WIDTHS))
    turned = rotate(softmax, rounded(any_basis(softmax, random)))
    return Sketched(softmax, turned, code(turned, first))


def other_sketch(victim: Sketched, weight: Float32) -> Sketched:
    """The victim's softmax with the sketch of another matrix."""
    turned = rotate(Softmax(weight, victim.softmax.bias), victim.turned.directions)
    first = widths_of(victim.arrays).coarse
    return victim._replace(arrays=code(turned, first))


def any_basis(softmax: Softmax, random: Generator) -> Float64:
    """[D, D] the builder's, or a cheaper one: none, orthogonal, or far from it."""
    D = softmax.dim
    skewed: Float64 = random.standard_normal((D, D)) + np.sqrt(D) * np.eye(D)
    match random.integers(4):
        case 0:
            spread = random.standard_normal((max(2 * D, 64), D)).astype(np.float32)
            return rotated(softmax, spread)
        case 1:
            return np.eye(D)
        case 2:
            return np.asarray(np.linalg.qr(skewed)[0] * 10.0 ** random.uniform(-1, 1))
    return skewed


def rows_of(random: Generator, V: int, D: int) -> Float32:
    """W of one of many kinds."""
    kind, W = random.integers(10), random.standard_normal((V, D))
    match kind:
        case 0:  # of all magnitudes
            W *= 10.0 ** random.uniform(-6, 3, (V, 1))
        case 1:  # a few neighbours in float32 of a few rows
            W = W[random.integers(max(1, V // 20), size=V)].astype(np.float32)
            W = np.nextafter(W, random.choice([-1, 1], W.shape).astype(np.float32) * np.float32(9))
        case 2:  # repeated rows
            W = W[random.integers(max(1, V // 5), size=V)]
        case 3:  # far from the origin
            W += 100 * random.standard_normal(D)
        case 4:  # of a low rank
            rank = max(1, D // 4)
            W = random.standard_normal((V, rank)) @ random.standard_normal((rank, D))
        case 5:  # whole numbers, which codes hold exactly
            W = random.integers(-3, 4, (V, D)).astype(np.float64)
        case 6:  # next to nothing, or next to what is refused
            W *= 10.0 ** random.choice([-42, -38, -30, 12, 17, 30])
        case 7:  # a few large coordinates
            W *= 10.0 ** random.uniform(-4, 4, D)
        case 8:  # sparse
            W *= random.random((V, D)) < 0.1
    with np.errstate(under="ignore"):
        return np.ascontiguousarray(W, np.float32)


def biases_of(random: Generator, W: Float32) -> Float32:
    """No biases, those of a vocabulary, many equal ones, or a few that are large."""
    V, size = len(W), float(np.linalg.norm(W.astype(np.float64), axis=1).max())
    match random.integers(4):
        case 0:
            return np.zeros(V, np.float32)
        case 1:
            return (size * random.standard_normal(V)).astype(np.float32)
        case 2:
            return (np.float32(size) * random.integers(-2, 3, V)).astype(np.float32)
    return np.where(random.random(V) < 0.02, np.float32(100 * size), 0).astype(np.float32)


def softmax_of(random: Generator, V: int, D: int) -> Softmax:
    W = rows_of(random, V, D)
    return Softmax(W, biases_of(random, W))


def contexts_of(random: Generator, softmax: Softmax, B: int) -> Float32:
    """Contexts along rows, against them, across them, whole numbers, of all magnitudes."""
    D, W = softmax.dim, softmax.weight.astype(np.float64)
    H = random.standard_normal((B, D)) * 10.0 ** random.uniform(-3, 2, (B, 1))
    for row in range(B):
        one, other = W[random.integers(len(W), size=2)]
        length = max(float(np.linalg.norm(one)), 1e-300)
        match random.integers(6):
            case 0:
                H[row] = one / length
            case 1:  # two rows have about the same logit
                apart = one - other
                H[row] -= apart * (H[row] @ apart) / max(float(apart @ apart), 1e-300)
            case 2:
                H[row] = np.rint(8 * H[row])
            case 3:
                H[row] = 0
                H[row, random.integers(D)] = 1
    size = float(np.linalg.norm(W, axis=1).max())
    most = LARGEST / max(size, 1e-30)
    lengths = np.maximum(np.linalg.norm(H, axis=1, keepdims=True), 1e-300)
    return np.ascontiguousarray(H * np.minimum(1, most / lengths), np.float32)
