from itertools import combinations
from math import comb

import numpy as np
import pytest

from logitsieve.training.kernels.hash_codes import (
    draw_windows,
    dwta_agreements,
    dwta_codes,
    rank_rows,
    window_chances,
)
from tests.synthetic import make_hidden


def codes_of(vectors: np.ndarray, windows: np.ndarray) -> np.ndarray:
    codes = np.empty((len(vectors), len(windows)), np.int32)
    dwta_codes(vectors, windows, codes)
    return codes


def agreement(first: np.ndarray, second: np.ndarray, window: int) -> float:
    """By the kernel."""
    offsets, ids = np.array([0, 1]), np.zeros(1, np.int32)
    ranks = rank_rows(np.stack([first, second]))
    chances = window_chances(len(first), window)
    return float(dwta_agreements(ranks[:1], ranks[1:], chances, offsets, ids)[0])


@pytest.mark.parametrize(("hashes", "window"), [(1, 2), (3, 4), (4, 8)])
def test_dense_vectors_hash_as_by_winner_take_all(hashes: int, window: int) -> None:
    windows = draw_windows(7, hashes, window, 24, seed=2)
    assert all(len(set(own)) == window for own in windows.reshape(-1, window).tolist())
    vectors = make_hidden(30, 24)
    winners = vectors[:, windows].argmax(-1)  # [B, L, K]
    expected = sum(winners[:, :, k] * window**k for k in range(hashes))
    np.testing.assert_array_equal(codes_of(vectors, windows), expected)


def test_windows_of_zeros_borrow_and_others_do_not() -> None:
    windows = draw_windows(40, 2, 4, 64, seed=3)
    sparse = np.zeros((1, 64), np.float32)
    sparse[0, [5, 20, 41]] = [0.3, 2.0, 1.0]
    codes = codes_of(sparse, windows)[0]
    nonzero = sparse[0, windows].any(-1)
    assert nonzero.any()
    assert not nonzero.all()
    own = sparse[0, windows].argmax(-1)
    for k in range(2):
        np.testing.assert_array_equal((codes >> 2 * k & 3)[nonzero[:, k]], own[nonzero[:, k], k])
    # Equal vectors agree also where they borrow; nothing at all is the first coordinate everywhere.
    np.testing.assert_array_equal(codes_of(2 * sparse, windows)[0], codes)
    assert not codes_of(np.zeros((1, 64), np.float32), windows).any()


@pytest.mark.parametrize("window", [2, 4])
def test_the_probability_is_that_of_all_windows(window: int) -> None:
    """Every window of 7 coordinates, enumerated."""
    for seed in range(5):
        first, second = make_hidden(2, 7, seed=seed)
        agree = sum(
            max(own, key=first.__getitem__) == max(own, key=second.__getitem__)
            for own in combinations(range(7), window)
        )
        assert agreement(first, second, window) == pytest.approx(agree / comb(7, window), abs=1e-12)


@pytest.mark.parametrize("dim", [24, 64, 65, 200])
def test_the_probability_is_the_rate_of_collisions(dim: int) -> None:
    random = np.random.default_rng(0)
    first = random.standard_normal(dim).astype(np.float32)
    second = (first + random.standard_normal(dim)).astype(np.float32)
    count = 20_000
    codes = codes_of(np.stack([first, second]), draw_windows(count, 1, 4, dim, seed=4))
    rate, p = float((codes[0] == codes[1]).mean()), agreement(first, second, 4)
    assert abs(rate - p) < 4 * (p * (1 - p) / count) ** 0.5
    assert agreement(first, first, 4) == pytest.approx(1)
