"""Draws within leaves of the kernel tree, against a softmax in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.results import Float64, Int64
from logitsieve.training.kernels.leaves import draw_in_leaves

V, D, N = 10, 5, 4  # three leaves, of 4, 4 and 2 classes
FORMS = pytest.mark.parametrize(("normalize", "absolute"), [(False, False), (True, False), (0, 1)])


def drawn(
    leaves: list[int], uniforms: Float64 | None, normalize: bool, absolute: bool, ids: Int64
) -> tuple[Int64, Float64]:
    """Ids and log q of one query that never draws 1, 8 and 9."""
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((V, D)).astype(np.float32)
    hidden = generator.standard_normal((1, D)).astype(np.float32)
    places, log_q = np.array([leaves]), np.zeros((1, len(leaves)))
    given = uniforms is None
    draw_in_leaves(
        matrix, places * N, V, N, bool(normalize), bool(absolute), hidden, np.array([0, 3]),
        np.array([1, 8, 9]), given, np.zeros((1, 1)) if uniforms is None else uniforms[None],
        places, ids, log_q,
    )  # fmt: skip
    return ids[0], log_q[0]


def probabilities(leaf: int, normalize: bool, absolute: bool) -> Float64:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((V, D)).astype(np.float32).astype(np.float64)
    hidden = generator.standard_normal((1, D)).astype(np.float32)[0]
    x = matrix @ hidden
    x = x / np.linalg.norm(matrix, axis=1) if normalize else x
    masses = np.exp(np.abs(x) if absolute else x)
    masses[[1, 8, 9]] = 0
    masses = masses[leaf * N : (leaf + 1) * N]
    return np.asarray(masses / masses.sum())


@FORMS
@pytest.mark.parametrize("leaf", [0, 1])
def test_a_draw_inverts_the_softmax_of_its_leaf(leaf: int, normalize: bool, absolute: bool) -> None:
    p = probabilities(leaf, normalize, absolute)
    uniforms = (np.arange(1000) + 0.5) / 1000
    ids, log_q = drawn([leaf] * 1000, uniforms, normalize, absolute, np.empty((1, 1000), np.int64))
    counts = np.bincount(ids - leaf * N, minlength=N)
    np.testing.assert_allclose(counts / 1000, p, atol=1.1e-3)
    np.testing.assert_allclose(np.exp(log_q), p[ids - leaf * N], rtol=1e-5)


@FORMS
def test_given_ids_get_their_probability(normalize: bool, absolute: bool) -> None:
    ids = np.arange(8)[None].copy()
    _, log_q = drawn([0] * 4 + [1] * 4, None, normalize, absolute, ids)
    p = np.concatenate([probabilities(leaf, normalize, absolute) for leaf in (0, 1)])
    np.testing.assert_allclose(np.exp(log_q), p, rtol=1e-5)


def test_no_leaf_is_no_class() -> None:
    ids, _ = drawn([-1, 0], np.array([0.5, 0.5]), False, False, np.empty((1, 2), np.int64))
    assert ids[0] == -1
    assert ids[1] in (0, 2, 3)
