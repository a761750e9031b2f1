"""Hashing against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.kernels.retrieval.hash_tables import probe_order, simhash_codes
from tests.synthetic import make_hidden


def make_planes(
    tables: int, bits: int, dim: int = 24, seed: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    planes = random.standard_normal((tables, bits, dim)).astype(np.float32)
    return planes, random.standard_normal(tables * bits).astype(np.float32)


def sides64(vectors: np.ndarray, planes: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """float64 [B, L, N]."""
    products = np.einsum("bd,lnd->bln", vectors.astype(np.float64), planes.astype(np.float64))
    sides: np.ndarray = products + shifts.reshape(planes.shape[:2])
    return sides


def hashed(vectors: np.ndarray, planes: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    codes = np.empty((len(vectors), len(planes)), np.int32)
    simhash_codes(vectors, planes, shifts, codes)
    return codes


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    tables=st.integers(1, 9),
    bits=st.integers(1, 16),
    dim=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_codes_are_signs_of_products(
    rows: int, tables: int, bits: int, dim: int, seed: int
) -> None:
    planes, shifts = make_planes(tables, bits, dim, seed)
    vectors = make_hidden(rows, dim, seed + 1)
    sides = sides64(vectors, planes, shifts)
    codes = hashed(vectors, planes, shifts)
    assert (codes >> bits == 0).all()
    clear = np.abs(sides) > 1e-4
    signs = codes[:, :, None] >> np.arange(bits) & 1
    np.testing.assert_array_equal(signs[clear], (sides > 0)[clear])


def test_a_vector_hashes_alike_in_any_batch() -> None:
    planes, shifts = make_planes(5, 7, 33)
    vectors = make_hidden(41, 33)
    together = hashed(vectors, planes, shifts)
    for row in range(41):
        np.testing.assert_array_equal(
            hashed(vectors[row : row + 1], planes, shifts)[0], together[row]
        )


@pytest.mark.parametrize("bits", [1, 2, 5, 16])
def test_probes_are_nested_and_in_the_end_every_bucket(bits: int) -> None:
    order = probe_order(bits, 1 << bits)
    assert order[0] == 0
    np.testing.assert_array_equal(np.sort(order), np.arange(1 << bits))
    np.testing.assert_array_equal(probe_order(bits, 2), order[:2])
    place = np.argsort(order)  # where each set of flips comes
    for r in range(bits - 1):
        assert place[1 << r] < place[1 << r + 1], "the nearer plane is flipped first"
    assert place[-1] == place.max(), "all flips come last"
