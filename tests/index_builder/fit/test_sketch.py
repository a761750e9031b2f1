"""The coordinates and codes of a sketch; tests/index/test_sketch_rows.py judges its numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index.sketch_rows import codings_of, level_codes
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fit.sketch import (
    RotatedRows,
    code,
    fit_sketch,
    rotated_at_random,
    rounded,
    steep,
    width_of,
)
from logitsieve.index_builder.fitting import BuildInputs, FitResult
from logitsieve.kernels.sketch.levels import APART
from tests.synthetic import make_hidden, make_softmax, rotated

V, T = 50, 130


def turned_of(rows: np.ndarray) -> RotatedRows:
    """Rows that are their own coordinates."""
    rows = np.ascontiguousarray(rows, np.float32)
    return RotatedRows(rounded(np.eye(rows.shape[1])), rows, 0.0)


def test_every_array_lies_as_the_format_says() -> None:
    random, first, tail, padded = np.random.default_rng(1), 32, 100, 128
    rows = random.standard_normal((37, first + tail), np.float32)
    arrays = code(turned_of(rows), first)
    head, *levels = codings_of(arrays, np.arange(37))
    assert arrays["coarse"].shape == (3, 16 * (first + 4))
    assert arrays["first"].shape == (3, 16 * (padded // 8 + 4))
    assert arrays["middle"].shape == (3, 16 * (padded // 8 + 4))
    assert arrays["fine"].shape == (3, 16 * (padded // 4 + 4))
    starts, step = arrays["starts"][:8], arrays["starts"][8]
    for row in range(37):
        group, i = divmod(row, 16)
        coarse, bits, middle, fine = (
            arrays[name][group] for name in ("coarse", "first", "middle", "fine")
        )
        j = np.arange(first)
        codes = coarse[64 * (j // 4) + 4 * i + j % 4].astype(np.int64) - 128
        np.testing.assert_array_equal(codes, head.codes[row])
        j = np.arange(padded)
        one = bits[16 * (j // 8) + i] >> (j % 8) & 1
        two = middle[16 * (j // 8) + i] >> (j % 8) & 1
        three = fine[16 * (j // 8) + i] >> (j % 8) & 1
        four = fine[2 * padded + 16 * (j // 8) + i] >> (j % 8) & 1
        nibbles = 8 * one + 4 * two + 2 * three + four
        assert not nibbles[tail:].any()
        for level, kept in zip(levels, (1, 2, 4), strict=True):
            np.testing.assert_array_equal(level_codes(nibbles[:tail], kept), level.codes[row])
        numbers = [
            *coarse[16 * first :].view(np.uint16).reshape(2, 16)[:, i],
            *bits[2 * padded :].view(np.uint16).reshape(2, 16)[:, i],
            *middle[2 * padded :].view(np.uint16).reshape(2, 16)[:, i],
            *fine[4 * padded :].view(np.uint16).reshape(2, 16)[:, i],
        ]
        floats = (np.array(numbers, np.int32) << step) + starts
        found = floats.astype(np.int32).view(np.float32)
        wanted: list[float] = []
        for level in (head, *levels):
            wanted += [level.scales[row], level.rests[row]]
        assert found.tolist() == wanted
    beyond = arrays["coarse"][2, : 16 * first].reshape(-1, 16, 4)[:, 5:]
    assert (beyond == 128).all()


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
    rows = KINDS[kind](np.random.default_rng(2)).astype(np.float32)
    arrays = code(turned_of(rows), 16)
    head, *levels = codings_of(arrays, np.arange(V))
    x = rows[:, 16:].astype(np.float64)
    lengths, largest = np.linalg.norm(x, axis=1), np.linalg.norm(x, axis=1).max()
    off = np.linalg.norm(head.errors(rows.astype(np.float64)), axis=1)
    assert (off <= head.kappa * head.scales).all()
    usual = lengths > max(2e-5 * largest, 1e-20)  # as long as codes reach
    assert (head.rests >= lengths).all()
    assert (head.rests <= lengths * (1 + 2.0**-11) + 1e-29)[usual].all()
    for level, bits in zip(levels, (1, 2, 4), strict=True):
        assert (level.codes % 2 == 1).all()
        assert np.abs(level.codes).max() <= (1 << bits) - 1
        errors = level.errors(rows.astype(np.float64))
        along = np.abs(np.einsum("rt,rt->r", errors, x)) / np.maximum(lengths, 1e-300)
        least = np.maximum(np.linalg.norm(errors, axis=1), 2 * APART * along)
        assert (level.rests >= least).all()
        most = np.maximum(np.linalg.norm(errors, axis=1), 2 * APART * (along + 3e-7 * lengths))
        assert (level.rests <= most * (1 + 2.0**-11) + 1e-29)[usual].all()
        assert (level.rests[~usual] <= 2.0**-5 * largest + 1e-24).all()
        assert (np.linalg.norm(level.codes, axis=1) <= level.most).all()
        assert (along[usual] <= 2.0**-12 * lengths[usual]).all()


def test_threads_change_nothing() -> None:
    turned = turned_of(np.random.default_rng(3).standard_normal((9000, 64)))
    one, two = (code(turned, 16, threads) for threads in (1, 2))
    np.testing.assert_equal(one, two)


def test_the_rotation_is_uniform_keeps_lengths_and_leaves_the_first_coordinates() -> None:
    basis = np.random.default_rng(4).standard_normal((40, 40))
    turned = rotated_at_random(basis, 8, seed=1)
    np.testing.assert_array_equal(turned[:8], basis[:8])
    np.testing.assert_allclose(turned[8:].T @ turned[8:], basis[8:].T @ basis[8:], atol=1e-12)
    np.testing.assert_array_equal(turned, rotated_at_random(basis, 8, seed=1))
    assert not np.allclose(turned, rotated_at_random(basis, 8, seed=2))
    # Means of entries, of their squares, and of the trace, in which the signs of QR would show.
    n, count = 12, 4000
    drawn = np.stack([rotated_at_random(np.eye(n), 0, seed) for seed in range(count)])
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
    wide = weight[best].sum(axis=1) + random.standard_normal((400, dim)) * spectrum
    train, heldout = (Contexts([part]) for part in np.split(wide.astype(np.float32), [300]))
    softmax = Softmax(weight.astype(np.float32), np.zeros(vocab_size, np.float32))
    return BuildInputs(softmax=softmax, train=train, heldout=heldout, config=BuildConfig(seed=3))


def test_the_basis_keeps_products_and_balances_rows_and_contexts() -> None:
    softmax = make_softmax(400, 24)
    hidden_states = (make_hidden(600, 24) * np.linspace(3, 0.1, 24)).astype(np.float32)
    basis = rotated(softmax, hidden_states)
    rows, contexts = softmax.weight @ np.linalg.inv(basis), hidden_states @ basis.T
    np.testing.assert_allclose(
        rows @ contexts.T, softmax.weight @ hidden_states.T, rtol=1e-3, atol=1e-3
    )
    of_rows, of_contexts = (np.square(each).mean(axis=0) for each in (rows, contexts))
    shares = of_rows / of_rows.sum(), of_contexts / of_contexts.sum()
    np.testing.assert_allclose(shares[0], shares[1], atol=0.03)  # the ridges keep them apart
    assert (np.diff(shares[1]) <= 1e-3).all()


def test_the_fit_is_the_same_again_whether_or_not_times_may_decide() -> None:
    flat, tries = np.ones(256), list[FitResult]()
    for reproducible in (True, False):
        inputs = inputs_of(flat)
        config = replace(inputs.config, reproducible=reproducible)
        tries.append(cast(FitResult, fit_sketch(replace(inputs, config=config))))
    made, again = tries
    assert made.summary == {"coarse": 64, "coordinates": 256}
    assert made.arrays["middle"].shape == (38, 16 * (192 // 8 + 4))
    np.testing.assert_equal(made.arrays, again.arrays)


def test_level_0_has_a_quarter_of_a_row_at_most() -> None:
    widths = {dim: width_of(dim) for dim in (1, 24, 64, 127, 128, 200, 256, 640, 4096)}
    assert list(widths.values()) == [16, 16, 16, 16, 32, 32, 64, 64, 64]


@pytest.mark.parametrize("named", [True, False])
def test_a_sketch_that_takes_as_long_as_all_logits_is_made_only_by_name(
    named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "logitsieve.index_builder.fit.sketch.fastest", lambda choices, us: min(choices)
    )
    made = fit_sketch(replace(inputs_of(np.ones(256)), named=named))
    assert (made is not None) == named


def test_a_spectrum_that_falls_is_steep() -> None:
    for spectrum, wanted in ((np.ones(256), False), (0.8 ** np.arange(256), True)):
        inputs = inputs_of(spectrum)
        made = cast(FitResult, fit_sketch(inputs))
        assert steep(inputs, made.arrays) == wanted
