"""log Z over all rows against float64, also where float32 dots mislead; who shares a pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.heads.exact import ExactHead
from tests.oracle import logits64

Make = Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def gaussian(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    return random.standard_normal((V, D)), random.standard_normal(V), random.standard_normal((9, D))


def flat(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    return 1e-3 * random.standard_normal((V, D)), np.zeros(V), random.standard_normal((9, D))


def peaked(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    weight, bias, hidden = gaussian(random, V, D)
    return weight, bias, 30.0 * hidden


def biased(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    weight, _, hidden = gaussian(random, V, D)
    return weight, random.choice([-1e4, 1e4], V), hidden


def cancelling(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    """Logits of about one, of terms of a million: float32 dots are off by whole nats."""
    weight, bias, hidden = gaussian(random, V, D)
    half = D // 2
    weight[:, half : 2 * half] = -weight[:, :half]
    hidden[:, :half] *= 1e6
    hidden[:, half : 2 * half] = hidden[:, :half] * (1 + 1e-7)
    return weight, bias, hidden


def tiny(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    weight, bias, hidden = gaussian(random, V, D)
    return 1e-25 * weight, 1e-30 * bias, 1e-25 * hidden


@pytest.mark.parametrize("scale", [1.0, 0.5, 3.0])
@pytest.mark.parametrize(("V", "D"), [(1, 1), (15, 3), (257, 40), (1000, 70)])
@pytest.mark.parametrize("make", [gaussian, flat, peaked, biased, cancelling, tiny])
def test_it_is_that_of_float64_and_of_each_row_alone(
    make: Make, V: int, D: int, scale: float
) -> None:
    random = np.random.default_rng(V)
    weight, bias, hidden = (part.astype(np.float32) for part in make(random, V, D))
    head = ExactHead(Softmax(weight, bias))
    logits = logits64(weight, bias, hidden) * scale
    found = head.log_z(hidden, scale)
    np.testing.assert_allclose(found, np.logaddexp.reduce(logits, axis=1), rtol=3e-7, atol=3e-7)
    for row in range(len(hidden)):
        assert head.log_z(hidden[row : row + 1].copy(), scale)[0] == found[row]
