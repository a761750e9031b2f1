from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.retrieval.hash_tables import (
    bucket_tables,
    lsh_collisions,
    lsh_select,
    probe_order,
    simhash_codes,
)
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


@given(
    rows=st.integers(1, 40),
    tables=st.integers(1, 9),
    bits=st.integers(1, 16),
    dim=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_codes_are_signs_of_dots(rows: int, tables: int, bits: int, dim: int, seed: int) -> None:
    planes, shifts = make_planes(tables, bits, dim, seed)
    vectors = make_hidden(rows, dim, seed + 1)
    sides = sides64(vectors, planes, shifts)
    codes = hashed(vectors, planes, shifts)
    assert (codes >> bits == 0).all()
    clear = np.abs(sides) > 1e-4
    signs = codes[:, :, None] >> np.arange(bits) & 1
    np.testing.assert_array_equal(signs[clear], (sides > 0)[clear])


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


class Tables:
    """Tables over random words, and what looking one query up should find."""

    def __init__(self, tables: int = 6, bits: int = 3, vocab_size: int = 200, dim: int = 24):
        self.bits, self.vocab_size = bits, vocab_size
        self.planes, self.shifts = make_planes(tables, bits, dim)
        words = make_hidden(vocab_size, dim, seed=7)
        self.codes = hashed(words, self.planes, np.zeros_like(self.shifts))
        self.offsets, self.ids = bucket_tables(self.codes, bits)

    def select(
        self, hidden_states: np.ndarray, tables: int, probes: int, limit: int
    ) -> list[np.ndarray]:
        counts = np.zeros(self.vocab_size, np.uint16)
        found = np.empty(self.vocab_size + 1, np.int32)
        order = probe_order(self.bits, probes)
        starts, ids = lsh_select(
            hidden_states, self.planes, self.shifts, self.offsets, self.ids, order, tables, limit,
            counts, found,
        )  # fmt: skip
        assert not counts.any(), "the scratch is left as it was"
        return np.split(ids, starts[1:-1])

    def expected_counts(self, hidden_states: np.ndarray, tables: int, probes: int) -> np.ndarray:
        """[B, V]: tables whose probed buckets hold each id."""
        sides = sides64(hidden_states, self.planes, self.shifts)
        order = probe_order(self.bits, probes)
        counts = np.zeros((len(hidden_states), self.vocab_size), np.int64)
        for row in range(len(hidden_states)):
            for table in range(tables):
                mine = sides[row, table]
                nearest = np.argsort(np.abs(mine), kind="stable")
                code = sum(1 << n for n in range(self.bits) if mine[n] > 0)
                for ranks in order:
                    flips = sum(1 << int(nearest[r]) for r in range(self.bits) if ranks >> r & 1)
                    counts[row] += self.codes[:, table] == code ^ flips
        return counts


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_rows_that_are_not_finite_find_ids_in_range(value: float) -> None:
    tables, hidden_states = Tables(), make_hidden(5)
    hidden_states[2] = value
    lists = tables.select(hidden_states, 6, 3, 200)
    assert len(lists) == 5
    assert all(len(np.intersect1d(ids, np.arange(200))) == len(ids) for ids in lists)
    for row in (0, 1, 3, 4):
        np.testing.assert_array_equal(
            lists[row], tables.select(hidden_states[row][None], 6, 3, 200)[0]
        )


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_each_table_holds_every_id_once_in_the_bucket_of_its_code(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, (50, 7)).astype(np.int32)
    offsets, ids = bucket_tables(codes, bits)
    buckets = product(codes.T, range(1 << bits))
    wanted = [np.flatnonzero(codes_of_table == bucket) for codes_of_table, bucket in buckets]
    np.testing.assert_array_equal(offsets, np.cumsum([0, *map(len, wanted)]))
    np.testing.assert_array_equal(ids, np.concatenate(wanted))


@pytest.mark.parametrize(("tables", "probes"), [(1, 1), (6, 1), (4, 3), (6, 8)])
def test_the_ids_of_the_probed_buckets_are_found(tables: int, probes: int) -> None:
    made, hidden_states = Tables(), make_hidden(37)
    expected = made.expected_counts(hidden_states, tables, probes)
    lists = made.select(hidden_states, tables, probes, 200)
    for row, ids in enumerate(lists):
        np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(expected[row]))
    counts = np.zeros((37, 200), np.uint16)
    order = probe_order(3, probes)
    for first, last in ((0, tables // 2), (tables // 2, tables)):
        lsh_collisions(
            hidden_states,
            made.planes,
            made.shifts,
            made.offsets,
            made.ids,
            order,
            first,
            last,
            counts,
        )
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("limit", [1, 2, 17, 60])
def test_a_cap_keeps_the_most_collided(limit: int) -> None:
    made, hidden_states = Tables(), make_hidden(20)
    expected = made.expected_counts(hidden_states, 6, 2)
    free = made.select(hidden_states, 6, 2, 200)
    for row, ids in enumerate(made.select(hidden_states, 6, 2, limit)):
        # Of equals those found first, in the order in which they were found.
        order = np.argsort(-expected[row][free[row]], kind="stable")[:limit]
        np.testing.assert_array_equal(ids, free[row][np.sort(order)])


def test_an_id_many_times_in_a_table_overflows_nothing() -> None:
    """Files are checked for that only when they are verified."""
    planes, shifts = make_planes(2, 1)
    ids = np.zeros(140_000, np.int32)
    offsets = np.array([0, 70_000, 70_000, 140_000, 140_000], np.int32)
    counts, found = np.zeros(3, np.uint16), np.full(4, -1, np.int32)
    starts, chosen = lsh_select(
        make_hidden(4), planes, shifts, offsets, ids, probe_order(1, 2), 2, 3, counts, found
    )
    np.testing.assert_array_equal(starts, np.arange(5))
    assert not chosen.any()
    assert not counts.any()


def test_results_of_any_size_fit() -> None:
    """The first guess of their size is too small."""
    made = Tables(tables=2, bits=1, vocab_size=5000)
    lists = made.select(make_hidden(9), 2, 2, 5000)
    for ids in lists:
        np.testing.assert_array_equal(np.sort(ids), np.arange(5000))
