"""Levels of a sketch: every bound holds, and bounds that may fail do so as seldom as they say."""

from math import lgamma, log, pi, sqrt

import numpy as np
import pytest

from logitsieve.api.results import Float64
from logitsieve.heads import AssuredHead, EstimatedHead, ExactHead, Softmax
from logitsieve.index.sketch_codes import codings_of
from logitsieve.index.sketch_rows import solve
from logitsieve.index_builder.fit.levels import ERRORS
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sketch.encode_query import reach_of
from tests.synthetic import basis_of, make_hidden, make_softmax, rotated, sketch_arrays, sketch_head

V, D, F = 2000, 144, 16


def beyond(f: float, n: int, points: int = 400_001) -> float:
    """The chance that a coordinate of a uniform direction in n dimensions is above f."""
    u = f + (1 - f) * np.linspace(0, 1, points) ** 3  # close together where the density is
    with np.errstate(divide="ignore"):
        logs = (n - 3) / 2 * np.log1p(-u * u)
    density = np.exp(logs + lgamma(n / 2) - lgamma((n - 1) / 2) - log(pi) / 2)
    return float(np.trapezoid(density, u))


@kernel("(float64, int64, int64)")
def reach(chance, rows, dim):
    return reach_of(chance, rows, dim)


@pytest.mark.parametrize("dim", [8, 64, 576, 4096])
@pytest.mark.parametrize("chance", [0.5, 1e-3, 1e-15, 1e-30])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_few_coordinates_are_beyond_the_limit(dim: int, chance: float, rows: int) -> None:
    f, each = reach(chance, rows, dim), chance / (3 * rows)
    if f < 1:
        assert each / 20 <= beyond(f, dim - 1) <= each * (1 + 1e-6)


def test_nothing_may_be_wrong_without_a_chance_or_with_few_dimensions() -> None:
    assert (reach(0.0, 5, 576), reach(1e-3, 5, 3)) == (1, 1)


def flat(seed: int = 0, rows: int = V) -> tuple[Softmax, np.ndarray]:
    """A softmax of a flat spectrum."""
    return make_softmax(rows, D, seed, scale=0.3), make_hidden(60, D, seed + 1)


def tail_errors(seed: int) -> Float64:
    """[3, 200, B] errors of tails over the norms of both, for the rotation of that seed."""
    softmax, hidden = flat(rows=200)
    basis, _ = rotated(softmax, hidden, D)
    turned = sketch_arrays(softmax, basis, F, seed=seed)
    solver = solve(turned)
    rows = softmax.weight.astype(np.float64) @ solver.inverse
    tails = (hidden.astype(np.float64) @ basis_of(turned).T)[:, F:].T
    _, *levels = codings_of(turned, np.arange(200), np.arange(200))
    lengths = np.linalg.norm(tails, axis=0)
    return np.stack(
        [level.errors(rows) @ tails / level.rests[:, None] / lengths for level in levels]
    )


def test_errors_of_tails_have_the_law_of_a_coordinate_of_a_direction() -> None:
    """One row and context of each of many rotations: independent, so that KS is a test of it."""
    drawn = np.stack([tail_errors(seed)[:, ::50, ::20] for seed in range(60)])
    n, count = D - F - 1, len(drawn)
    # Orthogonal to its row, an error has nothing of what the context has along it.
    law = np.vectorize(lambda f: 1 - beyond(f, n, 4001))
    for level in range(3):
        found = law(np.sort(drawn[:, level, 0, 0]))
        steps = np.arange(count + 1) / count
        distance = max(np.abs(found - steps[1:]).max(), np.abs(found - steps[:-1]).max())
        assert distance < sqrt(-log(1e-3 / 2) / 2 / count)  # Kolmogorov-Smirnov at 1e-3
        assert abs(drawn[:, level].std() * sqrt(n) - 1) < 0.15


def test_norms_of_errors_are_those_that_the_choice_of_levels_counts_on() -> None:
    softmax, hidden = flat()
    arrays = sketch_arrays(softmax, rotated(softmax, hidden, D)[0], F)
    rows = softmax.weight.astype(np.float64) @ solve(arrays).inverse
    _, *levels = codings_of(arrays, np.arange(V), np.arange(V))
    lengths = np.linalg.norm(rows[:, F:], axis=1)
    for level, share in zip(levels, ERRORS, strict=True):
        assert abs((level.rests / lengths).mean() / share - 1) < 0.06


def test_each_grade_computes_fewer_rows_and_finds_the_best() -> None:
    softmax, hidden = flat()
    arrays = sketch_arrays(softmax, rotated(softmax, hidden, D)[0], F)
    exact, certified = ExactHead(softmax), sketch_head(softmax, arrays)
    grades = [kind(softmax, arrays, fallback=exact) for kind in (AssuredHead, EstimatedHead)]
    tops = [head.topk(hidden, 5) for head in (certified, *grades)]
    for top in tops:
        np.testing.assert_array_equal(top.ids, exact.topk(hidden, 5).ids)
    assert [top.exact.all() for top in tops] == [True, False, False]
    scanned = [top.scanned.mean() for top in tops]
    assert scanned[2] <= scanned[1] < scanned[0] < V
    assert np.isinf(grades[0].candidates(hidden, 5).upper).all()


def test_the_threshold_rises_as_soon_as_a_better_row_is_likely() -> None:
    """Up to 256 rows may wait to be computed together: few of them need to be."""
    softmax, hidden = flat(rows=20_000)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden, D)[0], F)
    for kind, most in ((EstimatedHead, 20), (AssuredHead, 35)):
        top = kind(softmax, arrays, fallback=ExactHead(softmax)).topk(hidden, 1)
        assert top.scanned.max() <= most
