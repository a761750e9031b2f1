from functools import partial
from math import acos, pi
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.structures.hashing import DWTA, Hashing, SimHash, StructuredSimHash
from tests.refusals import refused

DIM = 30


def pair(seed: int, noise: float) -> np.ndarray:
    """Two lifted vectors [2, X] at some angle."""
    random = np.random.default_rng(seed)
    first = random.standard_normal(DIM + 2)
    second = first + noise * random.standard_normal(DIM + 2)
    return np.stack([first, second]).astype(np.float32)


def agreement(family: Hashing, vectors: np.ndarray) -> float:
    kept = family.kept(vectors)
    offsets, ids = np.array([0, 1]), np.zeros(1, np.int32)
    return float(family.agreements(kept[:1], kept[1:], offsets, ids)[0])


@pytest.mark.parametrize("noise", [0.2, 1.0, 5.0])
def test_sides_agree_as_the_angle_says(noise: float) -> None:
    vectors = pair(0, noise)
    cosine = float(vectors[0] @ vectors[1] / np.prod(np.linalg.norm(vectors, axis=1)))
    expected = 1 - acos(cosine) / pi
    family = SimHash(DIM, tables=2000, bits=8, seed=1)
    assert agreement(family, vectors) == pytest.approx(expected, abs=1e-6)
    codes = family.codes(vectors)
    different = sum(int(x).bit_count() for x in codes[0] ^ codes[1])
    count = 16_000
    spread = (expected * (1 - expected) / count) ** 0.5
    assert abs(1 - different / count - expected) < 4 * spread


def test_vectors_of_zeros_agree_with_each_other_and_half_of_the_time_with_others() -> None:
    family = SimHash(DIM, tables=2000, bits=8, seed=1)
    vectors = pair(0, 1.0)
    vectors[:, -1] = 0  # as of rows and contexts
    zeros, other = np.zeros_like(vectors), np.stack([np.zeros_like(vectors[0]), vectors[1]])
    assert (agreement(family, zeros), agreement(family, other)) == (1, 0.5)
    codes = family.codes(np.concatenate([zeros, other]))
    np.testing.assert_array_equal(codes[0], codes[1])
    same = 16_000 - sum(int(x).bit_count() for x in codes[2] ^ codes[3])
    assert abs(same / 16_000 - 0.5) < 4 * (0.25 / 16_000) ** 0.5


@pytest.mark.parametrize("noise", [0.2, 1.0, 5.0])
def test_structured_hyperplanes_agree_as_often(noise: float) -> None:
    vectors = pair(3, noise)
    rates = []
    for seed in range(200):
        family = StructuredSimHash(DIM, tables=8, bits=4, seed=seed)
        codes = family.codes(vectors)
        rates.append(1 - sum(int(x).bit_count() for x in codes[0] ^ codes[1]) / 32)
    expected = agreement(SimHash(DIM, tables=1, bits=1, seed=0), vectors)
    # H D1 H D2 H D3 of so few dimensions is near to a Gaussian matrix, not equal to one.
    assert abs(np.mean(rates) - expected) < 4 * np.std(rates) / 200**0.5 + 0.01


@pytest.mark.parametrize(
    "family", [partial(SimHash, bits=4), partial(DWTA, hashes=2, window=4)], ids=["simhash", "dwta"]
)
def test_common_buckets_are_as_likely_as_the_law_says(family: Any) -> None:
    vectors, draws, together = pair(5, 1.0), 3000, 0
    for seed in range(draws):
        made: Hashing = family(DIM, tables=3, seed=seed)
        codes = made.codes(vectors)
        together += bool((codes[0] == codes[1]).any())
    kept = made.kept(vectors)
    offsets, ids = np.array([0, 1]), np.zeros(1, np.int32)
    p = float(made.chances(kept[:1], kept[1:], offsets, ids)[0])
    assert 0.05 < p < 0.95
    assert abs(together / draws - p) < 4 * (p * (1 - p) / draws) ** 0.5
    assert made.chances(kept[:1], kept[:1], offsets, ids)[0] == 1


def test_what_was_drawn_is_the_state_and_threads_change_nothing() -> None:
    vectors = pair(7, 1.0)
    first = SimHash(DIM, tables=5, bits=6, seed=1)
    second = SimHash(DIM, tables=5, bits=6, seed=2)
    assert (first.codes(vectors) != second.codes(vectors)).any()
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(first.codes(vectors), second.codes(vectors))
    with pytest.raises(InvalidRequest, match="shape"):
        SimHash(DIM, tables=6, bits=6, seed=2).load_state_dict(first.state_dict())
    vectors = np.random.default_rng(0).standard_normal((200, DIM + 2)).astype(np.float32)
    family = SimHash(DIM, tables=5, bits=6, seed=1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = family.codes(vectors)
        torch.set_num_threads(3)
        np.testing.assert_array_equal(family.codes(vectors), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("family", "options", "field"),
    [
        (SimHash, {"tables": 0, "bits": 4}, "tables"),
        (SimHash, {"tables": 1, "bits": 17}, "bits"),
        *[(DWTA, {"tables": 1, "hashes": 2, "window": wrong}, "window") for wrong in (3, 32)],
        (DWTA, {"tables": 1, "hashes": 9, "window": 4}, "hashes"),
    ],
)
def test_bad_sizes_are_named(family: Any, options: dict[str, int], field: str) -> None:
    with refused(field):
        family(DIM, seed=0, **options)
