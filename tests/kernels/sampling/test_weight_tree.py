"""Weights with their sums, against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.weight_tree import (
    BLOCK,
    TILE,
    WeightTree,
    find_share,
    sum_again,
    sum_all,
    total_weight,
)
from logitsieve.kernels.simd.pointers import keep_alive, pointer


@kernel("(float32[::1], float64[::1], float64[::1], float64[::1], int64[::1])")
def find_all(weights, tiles, blocks, shares, places):
    tree = WeightTree(pointer(weights), pointer(tiles), pointer(blocks), weights.size)
    sum_all(tree)
    total = total_weight(tree)
    for i in range(shares.size):
        places[i] = find_share(tree, shares[i] * total_weight(tree))
    keep_alive(tiles)
    keep_alive(blocks)
    return total


@kernel("(float32[::1], float64[::1], float64[::1], int64, float32)")
def change(weights, tiles, blocks, place, weight):
    tree = WeightTree(pointer(weights), pointer(tiles), pointer(blocks), weights.size)
    weights[place] = weight
    sum_again(tree, place)
    total = total_weight(tree)
    keep_alive(tiles)
    keep_alive(blocks)
    return total


def sums_of(weights: np.ndarray, size: int) -> np.ndarray:
    sums: np.ndarray = weights.astype(np.float64).reshape(-1, size).sum(axis=1)
    return sums


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(1, 3),
    exponent=st.integers(-30, 30),
    kept=st.sampled_from([1.0, 0.5, 0.01, 0.001]),
    seed=st.integers(0, 1 << 30),
)
def test_sums_and_shares_are_those_of_numpy(
    blocks: int, exponent: int, kept: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    weights = (random.exponential(size=blocks * BLOCK) ** 3 * 10.0**exponent).astype(np.float32)
    weights[random.random(weights.size) > kept] = 0
    weights[random.integers(weights.size)] = np.float32(10.0**exponent)
    tiles, sums = np.empty(weights.size // TILE), np.empty(blocks)
    shares = np.concatenate([[2.0**-53, 1 - 2.0**-53], random.random(200)])
    places = np.empty(shares.size, np.int64)
    total = find_all(weights, tiles, sums, shares, places)
    np.testing.assert_allclose(tiles, sums_of(weights, TILE), rtol=1e-14)
    np.testing.assert_allclose(sums, sums_of(weights, BLOCK), rtol=1e-14)
    np.testing.assert_allclose(total, weights.astype(np.float64).sum(), rtol=1e-14)
    ends = np.cumsum(weights.astype(np.float64))
    targets, slack = shares * total, 1e-12 * total
    assert (ends[places] > targets - slack).all()
    assert (ends[places] - weights[places] <= targets + slack).all()
    assert places[0] == np.flatnonzero(weights)[0]


def test_a_changed_weight_is_added_up_anew() -> None:
    random = np.random.default_rng(0)
    weights = random.exponential(size=2 * BLOCK).astype(np.float32)
    tiles, sums = np.empty(weights.size // TILE), np.empty(2)
    find_all(weights, tiles, sums, np.empty(0), np.empty(0, np.int64))
    for place in random.integers(0, weights.size, 300):
        total = change(weights, tiles, sums, place, np.float32(random.exponential() ** 8 * 1e-9))
    np.testing.assert_allclose(tiles, sums_of(weights, TILE), rtol=1e-14)
    np.testing.assert_allclose(sums, sums_of(weights, BLOCK), rtol=1e-14)
    assert total == sums.sum()
    weights[:] = 0
    assert find_all(weights, tiles, sums, np.empty(0), np.empty(0, np.int64)) == 0
