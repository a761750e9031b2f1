"""A sketch with levels: its layout, codes and numbers of tails, the rotation, when it is built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index.sketch_rows import level_codes
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.fit.levels import (
    FIRST,
    LEAST_DIM,
    bit_planes,
    code_levels,
    crumbs,
    encode_tails,
    fit_levels,
    turned_at_random,
)
from logitsieve.index_builder.fit.rotated_rows import factored, turn
from logitsieve.index_builder.fitting import BuildInputs
from logitsieve.kernels.sketch.levels import APART

V, T = 50, 130


def test_bits_lie_as_the_format_says() -> None:
    bits = np.random.default_rng(0).integers(0, 2, (32, 64)).astype(np.uint8)
    planes = bit_planes(bits)
    assert planes.shape == (2, 16 * 8)
    for row, j in np.ndindex(bits.shape):
        assert planes[row // 16, 16 * (j // 8) + row % 16] >> (j % 8) & 1 == bits[row, j]


def test_crumbs_lie_as_the_format_says() -> None:
    codes = np.random.default_rng(0).integers(0, 4, (5, 128)).astype(np.uint8)
    packed = crumbs(codes)
    assert packed.shape == (5, 32)
    for row, j in np.ndindex(codes.shape):
        shift = 2 * (j % 64 // 16)
        assert packed[row, 16 * (j // 64) + j % 16] >> shift & 3 == codes[row, j]


def test_every_array_lies_as_the_format_says() -> None:
    """Places follow `order`, the last group is filled up, and extras come in their order."""
    random, first, tail, padded = np.random.default_rng(1), 32, 100, 128
    softmax = Softmax(
        random.standard_normal((37, first + tail), np.float32),
        random.standard_normal(37, np.float32),
    )
    order = random.permutation(37).astype(np.int32)
    turned = turn(softmax, factored(np.eye(first + tail)))
    arrays = code_levels(turned, softmax.bias, first, order)
    tails = encode_tails(turned.rows[:, first:], turned.outside)
    assert arrays["coarse"].shape == (3, 16 * (first + padded // 8 + 16))
    assert arrays["middle"].shape == (3, 16 * (padded // 8 + 8))
    assert arrays["fine"].shape == (37, padded // 4 + 8)
    for place, row in enumerate(order):
        group, i = divmod(place, 16)
        coarse, middle, fine = arrays["coarse"][group], arrays["middle"][group], arrays["fine"]
        numbers = coarse[16 * (first + padded // 8) :].view(np.float32).reshape(4, 16)[:, i]
        j = np.arange(first)
        codes = coarse[64 * (j // 4) + 4 * i + j % 4].astype(np.int64) - 128
        off = turned.rows[row, :first] - codes * numbers[0]
        assert np.abs(off).max() <= 0.51 * numbers[0]
        assert numbers[1:].tolist() == [
            tails.scales[0, row],
            tails.norms[0, row],
            softmax.bias[row],
        ]
        j = np.arange(padded)
        one = coarse[16 * first + 16 * (j // 8) + i] >> (j % 8) & 1
        two = middle[16 * (j // 8) + i] >> (j % 8) & 1
        rest = fine[place, 16 * (j // 64) + j % 16] >> 2 * (j % 64 // 16) & 3
        np.testing.assert_array_equal(8 * one + 4 * two + rest, tails.codes[row])
        second = middle[2 * padded :].view(np.float32).reshape(2, 16)[:, i]
        assert second.tolist() == [tails.scales[1, row], tails.norms[1, row]]
        assert fine[place, -8:].view(np.float32).tolist() == [
            tails.scales[2, row],
            tails.norms[2, row],
        ]
    beyond = arrays["coarse"][2, -64:].view(np.float32)[5:]
    assert (beyond == -np.inf).all()


KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda random: random.standard_normal((V, T)),
    "one coordinate": lambda random: np.eye(V, T) * 3,
    "zero": lambda random: np.zeros((V, T)),
    "all sizes": lambda random: (
        random.standard_normal((V, T)) * np.geomspace(1e-38, 1e12, V)[:, None]
    ),
    "below a normal scale": lambda random: random.standard_normal((V, T)) * 1e-33,
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_tails_bound_what_they_should(kind: str) -> None:
    tails = KINDS[kind](np.random.default_rng(2)).astype(np.float32)
    outside = np.full(V, 1e-9)
    made, x = encode_tails(tails, outside), tails.astype(np.float64)
    lengths = np.linalg.norm(x, axis=1)
    assert made.codes.shape == (V, 192)
    assert not made.codes[:, T:].any()
    for level, bits in enumerate((1, 2, 4)):
        codes = level_codes(made.codes[:, :T], bits)
        assert (codes % 2 == 1).all()
        assert np.abs(codes).max() <= (1 << bits) - 1
        errors = x - codes * made.scales[level].astype(np.float64)[:, None]
        along = np.abs(np.einsum("rt,rt->r", errors, x)) / np.maximum(lengths, 1e-300)
        least = np.linalg.norm(errors, axis=1) + APART * (along + outside)
        assert (made.norms[level] >= least).all()
        assert (made.norms[level] <= least * (1 + 1e-5) + 1e-44).all()
        assert (np.linalg.norm(codes, axis=1) <= made.longest[level]).all()
        normal = lengths > 1e-20  # the scale is no smaller than 1e-30
        assert (along[normal] <= 2.0**-23 * lengths[normal]).all()


def test_threads_change_nothing() -> None:
    tails = np.random.default_rng(3).standard_normal((9000, 64)).astype(np.float32)
    for one, two in zip(
        encode_tails(tails, np.zeros(9000)), encode_tails(tails, np.zeros(9000), 2), strict=True
    ):
        np.testing.assert_array_equal(one, two)


def test_the_rotation_keeps_lengths_and_leaves_the_first_coordinates() -> None:
    basis = np.random.default_rng(4).standard_normal((40, 40))
    turned = turned_at_random(basis, 8, seed=1)
    np.testing.assert_array_equal(turned[:8], basis[:8])
    np.testing.assert_allclose(turned[8:].T @ turned[8:], basis[8:].T @ basis[8:], atol=1e-12)
    np.testing.assert_array_equal(turned, turned_at_random(basis, 8, seed=1))
    assert not np.allclose(turned, turned_at_random(basis, 8, seed=2))


def test_the_rotation_is_uniform() -> None:
    """Means of entries, of their squares, and of the trace, in which the signs of QR would show."""
    n, count = 12, 4000
    drawn = np.stack([turned_at_random(np.eye(n), 0, seed) for seed in range(count)])
    deviations = 5 / np.sqrt(count)
    assert np.abs(drawn.mean(axis=0)).max() < deviations / np.sqrt(n)
    assert np.abs(n * (drawn**2).mean(axis=0) - 1).max() < deviations * np.sqrt(2)
    traces = np.trace(drawn, axis1=1, axis2=2)
    assert abs(traces.mean()) < deviations
    assert abs(traces.var() - 1) < deviations * np.sqrt(2)


def inputs_of(spectrum: np.ndarray, dim: int = 256, vocab_size: int = 600) -> BuildInputs:
    random = np.random.default_rng(5)
    weight = random.standard_normal((vocab_size, dim)) * spectrum
    best = np.argsort(random.random((400, vocab_size)))[:, :5]  # five words stand out
    hidden = (weight[best].sum(axis=1) + random.standard_normal((400, dim)) * spectrum).astype(
        np.float32
    )
    return BuildInputs(
        softmax=Softmax(weight.astype(np.float32), np.zeros(vocab_size, np.float32)),
        train=Contexts([hidden[:300]]),
        heldout=Contexts([hidden[300:]]),
        config=BuildConfig(seed=3),
    )


def test_levels_are_built_for_a_flat_softmax_alone() -> None:
    flat, steep = np.ones(256), 0.8 ** np.arange(256)
    made = fit_levels(inputs_of(flat))
    assert made
    assert made.summary == {"coarse": FIRST, "coordinates": 256}
    assert made.arrays["middle"].shape == (38, 16 * (192 // 8 + 8))
    assert fit_levels(inputs_of(steep)) is None
    assert fit_levels(inputs_of(np.ones(LEAST_DIM - 1), dim=LEAST_DIM - 1)) is None


def test_the_same_build_gives_the_same_bytes() -> None:
    one, two = (fit_levels(inputs_of(np.ones(256))) for _ in range(2))
    assert one
    assert two
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name])
