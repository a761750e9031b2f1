"""log Z in float64: its value, interval and place among batches, also of one-sided roundings."""

from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.heads.exact import ExactHead
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE
from tests.oracle import log_probs, logits64

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


def one_sided(random: np.random.Generator, V: int, D: int) -> tuple[np.ndarray, ...]:
    """Equal rows, and each float32 sum of a product rounds down: nothing averages out."""
    scale = 4.0
    row, hidden = np.zeros(D), np.zeros((9, D))
    row[:16] = np.sqrt(scale)
    row[16:] = np.sqrt(scale * 2.0**-24 * 0.98)
    hidden[:, :16] = scale * (1 + 2.0**-20) / row[:16]
    hidden[:, 16:] = scale * 2.0**-24 * 0.98 / row[16:]
    return np.repeat(row[None], V, 0), np.full(V, -float(row @ hidden[0])), hidden


MAKERS = [gaussian, flat, peaked, biased, cancelling, tiny, one_sided]


def made(make: Make, V: int, D: int) -> tuple[ExactHead, np.ndarray, np.ndarray]:
    """The head, rows of hidden, and the logits in float64."""
    parts = make(np.random.default_rng(V), V, D)
    weight, bias, hidden = (part.astype(np.float32) for part in parts)
    return ExactHead(Softmax(weight, bias)), hidden, logits64(weight, bias, hidden)


def true_rest(logits: np.ndarray, scale: float) -> np.ndarray:
    """log Z less scale times the largest logit, by row."""
    tops = logits.max(axis=1, keepdims=True)
    apart = (logits.astype(np.longdouble) - tops) * scale
    return np.array([-log_probs(row).max() for row in apart])


@pytest.mark.parametrize(
    ("V", "D", "scale"), [(1, 1, 1.0), (15, 3, 3.0), (257, 40, 0.5), (1000, 70, 1.0)]
)
@pytest.mark.parametrize("make", MAKERS)
def test_it_is_that_of_long_doubles(make: Make, V: int, D: int, scale: float) -> None:
    head, hidden, logits = made(make, V, D)
    found, wanted = head.log_z(hidden, scale), true_rest(logits, scale)
    np.testing.assert_array_equal(found[:, TOP], logits.max(axis=1))
    assert ((found[:, LOW] <= wanted) & (wanted <= found[:, HIGH])).all()
    np.testing.assert_allclose(found[:, VALUE], wanted.astype(np.float64), rtol=1e-13)
    assert (found[:, HIGH] - found[:, LOW] <= 3e-12 * found[:, VALUE] + 1e-280).all()
    for row in range(len(hidden)):
        alone = head.log_z(hidden[row : row + 1].copy(), scale)[0]
        np.testing.assert_array_equal(alone, found[row])


def test_edits_take_the_place_of_logits() -> None:
    head, hidden, logits = made(gaussian, 600, 24)
    random = np.random.default_rng(0)
    ids = [np.sort(random.choice(600, count, replace=False)) for count in [0, 1, 600] + [40] * 6]
    values = [random.standard_normal(len(row)) * 3 for row in ids]
    values[3][::2] = -np.inf
    for row, (places, edits) in enumerate(zip(ids, values, strict=True)):
        logits[row, places] = edits
    offsets = np.cumsum([0, *map(len, ids)])
    edits = offsets, np.concatenate(ids).astype(np.int32), np.concatenate(values)
    found, wanted = head.log_z(hidden, 0.7, edits), true_rest(logits, 0.7)
    assert ((found[:, LOW] <= wanted) & (wanted <= found[:, HIGH])).all()


def test_rows_of_any_length_and_scale() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal(n) * s for n, s in ((1, 1), (50, 100), (700, 1), (7, 1e4))]
    rows += [np.array([]), np.array([-np.inf] * 3), np.array([2.0, -np.inf])]
    offsets = np.cumsum([0, *map(len, rows)])
    out = np.empty((len(rows), FIELDS))
    csr_log_z(offsets, np.concatenate(rows), 1.0, out)
    for row, logits in enumerate(rows[:4]):
        wanted = true_rest(logits[None], 1.0)[0]
        assert out[row, TOP] == logits.max()
        assert out[row, LOW] <= wanted <= out[row, HIGH]
    assert out[4:6].tolist() == [[0, -np.inf, -np.inf, -np.inf]] * 2
    assert out[6].tolist() == [2.0, 0.0, 0.0, 0.0]
