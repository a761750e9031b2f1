from itertools import product

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.kernels.sampling.lsh_softmax import lazy_sample
from tests.oracle import best, chi_square_p, logits64, softmax
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax(300, 8, scale=0.7)
HIDDEN = make_hidden(3, 8)


def drawn(
    matrix: Softmax,
    hidden: np.ndarray,
    named: list[list[int]],
    values: list[np.ndarray],
    floors: np.ndarray,
    draws: int = 8_000,
    inverse: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, how many logits were computed)."""
    rows = len(hidden)
    offsets = np.cumsum([0, *map(len, named)])
    ids, scanned = np.empty((rows, draws), np.int32), np.empty(rows, np.int32)
    flat = np.array([i for row in named for i in row], np.int32)
    bad = lazy_sample(
        matrix.descriptor.ctypes.data, hidden, np.arange(rows, dtype=np.uint64), np.uint64(1),
        inverse, offsets, flat, np.concatenate(values), floors, ids, scanned,
    )  # fmt: skip
    assert bad == -1
    return ids, scanned


QUICK = (0.3, "tight", 1), (1.0, "above all", 20), (2.5, "tight", 299), (1.0, "tight", 300)


@pytest.mark.parametrize(
    ("inverse", "floor", "count"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.exhaustive)
        for each in product((0.3, 1.0, 2.5), ("tight", "above all"), (1, 20, 299, 300))
    ],
)
def test_draws_follow_the_softmax(inverse: float, floor: str, count: int) -> None:
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    order = best(logits, 300)
    named = order[:, :count].tolist()
    values = [row[ids] for row, ids in zip(logits, named, strict=True)]
    outside = np.take_along_axis(logits, order, 1)[:, min(count, 299)]
    floors = outside if floor == "tight" else logits.max(axis=1) + 30
    ids, scanned = drawn(SOFTMAX, HIDDEN, named, values, floors, inverse=inverse)
    for row in range(3):
        probs = softmax(logits[row], 1 / inverse)
        assert chi_square_p(np.bincount(ids[row], minlength=300), probs) > 1e-3
    assert (scanned <= 300 - count).all()


def test_few_logits_are_computed_for_one_draw() -> None:
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    order = best(logits, 60)
    values = [row[ids] for row, ids in zip(logits, order, strict=True)]
    floors = np.array([row[-1] for row in values])
    _, scanned = drawn(SOFTMAX, HIDDEN, order.tolist(), values, floors, draws=1)
    assert (scanned < 60).all()


def test_a_floor_below_what_is_outside_only_bends_the_distribution() -> None:
    """An id that a head missed may be missed again, but ids stay in range and the call returns."""
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    named = best(-logits, 5).tolist()
    values = [row[ids] for row, ids in zip(logits, named, strict=True)]
    for floor in (-1e30, -50.0):
        ids, _ = drawn(SOFTMAX, HIDDEN, named, values, np.full(3, floor), draws=500)
        assert ((ids >= 0) & (ids < 300)).all()


def test_noise_is_not_lost_in_large_logits() -> None:
    weight = np.zeros((40, 3), np.float32)
    weight[10:14, 0] = 1e20
    large = Softmax(weight, np.zeros(40, np.float32))
    hidden = np.array([[1e10, 0, 0]], np.float32)
    logits = logits64(weight, large.bias, hidden)[0]
    probs = softmax(logits)
    for named in ([10, 11], [0, 1]):
        ids, _ = drawn(large, hidden, [named], [logits[named]], logits[10:11].copy(), inverse=1e5)
        assert chi_square_p(np.bincount(ids[0], minlength=40), probs) > 1e-3
