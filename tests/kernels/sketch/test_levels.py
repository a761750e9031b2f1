"""Levels of a sketch: every bound holds, and bounds that may fail do so as seldom as they say."""

from math import lgamma, log, pi, sqrt

import numpy as np
import pytest

from logitsieve.api.results import Float64
from logitsieve.heads import FullHead, SketchHead, Softmax
from logitsieve.heads.sketch import GRADES
from logitsieve.index.sketch_rows import codings_of, solve
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.lanes import LANES, store
from logitsieve.kernels.simd.pointers import (
    int64_pointer,
    keep_alive,
    nowhere,
    pointer,
    shift,
    size_of,
)
from logitsieve.kernels.sketch.bounds import base_of, sum_four
from logitsieve.kernels.sketch.certified_topk import certified_bounds
from logitsieve.kernels.sketch.encode_query import (
    MARGIN,
    coded_at,
    encode_query,
    factors_of,
    reach_of,
    turn_rows,
)
from logitsieve.kernels.sketch.levels import uppers_by_lengths
from logitsieve.kernels.sketch.sieve import FIRST
from logitsieve.kernels.sketch.sketch import sketch_at, sketch_descriptor
from logitsieve.kernels.sketch.thresholds import SEEDS
from logitsieve.kernels.topk.descriptor import widen_hidden
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE
from tests.oracle import logits64
from tests.synthetic import (
    basis_of,
    make_hidden,
    make_softmax,
    matrix_of,
    rotated,
    sketch_arrays,
    sketch_head,
    usual_sketch,
)

pytestmark = pytest.mark.xdist_group("sketch")  # one worker of `make test-avx2` compiles it

V, D, F = 2000, 144, 16
ERRORS = 0.756, 0.365, 0.116  # of a tail's length that a level leaves, for a normal law


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
    softmax, hidden_states = flat(rows=200)
    basis = rotated(softmax, hidden_states)
    turned = sketch_arrays(softmax, basis, F, seed=seed)
    solver = solve(turned)
    rows = softmax.weight.astype(np.float64) @ solver.inverse
    tails = (hidden_states.astype(np.float64) @ basis_of(turned).T)[:, F:].T
    _, *levels = codings_of(turned, np.arange(200))
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


@kernel("(int64, float32[::1], int64, float32[::1])")
def bound_by_level_0(address, hidden_states, rows, uppers):
    """Fill bounds by level 0 [V, padded], as if for `rows` best; return the margin, -1: refused."""
    descriptor = int64_pointer(address)
    sketch, dim = sketch_at(descriptor), padded(hidden_states.size)
    scratch = np.empty(dim + size_of(coded_at(descriptor, nowhere())), np.float64)
    start = shift(pointer(scratch), dim)
    coded = coded_at(descriptor, start)
    norm, margin = widen_hidden(descriptor, pointer(hidden_states), pointer(scratch)), -1.0
    if norm >= 0:
        turn_rows(descriptor, pointer(hidden_states), np.int64(1), start, np.int64(0))
        encode_query(descriptor, norm, coded, rows)
        query, margin = factors_of(coded.factors), coded.factors[MARGIN]
        for group in range(sketch.groups):
            sums = sum_four(sketch, coded.planes, group, group + 1)[0]
            base = base_of(sketch, query, group, sums)
            upper = uppers_by_lengths(sketch, query, base, group)
            store(pointer(uppers), LANES * group, upper)
    keep_alive(scratch)
    return margin


@pytest.mark.parametrize("chance", [0.0, 1e-3])
@pytest.mark.parametrize(
    "kind", ["gaussian", "decaying", "rank two", "far from zero", "equal rows", "both", "zeros"]
)
def test_no_logit_is_above_its_bound_by_level_0(kind: str, chance: float) -> None:
    """Contexts along tails, which make it tight, at all scales; it holds whatever may fail."""
    random = np.random.default_rng(0)
    softmax = Softmax(matrix_of(kind, 90, 72), random.standard_normal(90).astype(np.float32))
    basis = np.linalg.qr(random.standard_normal((72, 72)))[0] * random.uniform(0.1, 10, (72, 1))
    arrays = sketch_arrays(softmax, basis, F)
    descriptor = sketch_descriptor(softmax.descriptor, arrays, chance)
    basis, rows = basis_of(arrays), softmax.weight.astype(np.float64)
    tails = rows @ np.linalg.inv(basis)
    tails[:, :F] = 0
    along = np.linalg.solve(basis, tails[:30].T).T
    mixed = along + rows[:30] * 10.0 ** random.uniform(-6, 0, (30, 1))
    closest, tried = np.inf, 0
    for context in (*along, *mixed, *random.standard_normal((8, 72))):
        for scale in (1e-30, 1e-3, 1.0, 1e3, 1e18):
            h = (scale * context / max(float(np.abs(context).max()), 1e-300)).astype(np.float32)
            uppers = np.empty(96, np.float32)
            margin = bound_by_level_0(descriptor.ctypes.data, h, 5, uppers)
            if margin < 0:
                continue
            logits = logits64(softmax.weight, softmax.bias, h[None])[0]
            over = uppers[:90].astype(np.float64) - logits
            assert (over >= -margin).all()
            size = np.abs(logits - softmax.bias).max()
            closest, tried = min(closest, over.min() / max(size, 1e-300)), tried + 1
    assert tried > 200
    assert closest < 0.01


def test_norms_of_errors_are_those_of_the_docs() -> None:
    softmax, hidden_states = flat()
    arrays = sketch_arrays(softmax, rotated(softmax, hidden_states), F)
    rows = softmax.weight.astype(np.float64) @ solve(arrays).inverse
    _, *levels = codings_of(arrays, np.arange(V))
    lengths = np.linalg.norm(rows[:, F:], axis=1)
    for level, share in zip(levels, ERRORS, strict=True):
        assert abs((level.rests / lengths).mean() / share - 1) < 0.06


def test_each_grade_computes_fewer_rows_and_finds_the_best() -> None:
    softmax, hidden_states = flat()
    arrays = sketch_arrays(softmax, rotated(softmax, hidden_states), F)
    full = FullHead(softmax)
    head = sketch_head(softmax, arrays, fallback=full)
    grades = [head.with_knobs(max_error=grade) for grade in GRADES[1:]]
    tops = [head.topk(hidden_states, 5) for head in (head, *grades)]
    for top in tops:
        np.testing.assert_array_equal(top.ids, full.topk(hidden_states, 5).ids)
    assert [top.proven.all() for top in tops] == [True, False, False]
    scanned = [top.scanned.mean() for top in tops]
    assert scanned[2] <= scanned[1] < scanned[0] < V
    assert np.isinf(grades[0].candidates(hidden_states, 5).upper).all()


def test_the_threshold_rises_as_soon_as_a_better_row_is_likely() -> None:
    """At most twice the rows are computed that would be if each raised the threshold at once.

    In four rotations it was 1.5 to 2.1 times as many, with the first ones; in two of them 3.6 to
    5.2 times if thresholds rise only after 256 rows, which may wait to be computed together.
    """
    softmax, hidden_states = flat(rows=20_000)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden_states), F)
    descriptor = sketch_descriptor(softmax.descriptor, arrays, 0.0)
    proven = np.empty((len(hidden_states), 2, softmax.vocab_size), np.float32)
    for row, each in zip(hidden_states, proven, strict=True):
        certified_bounds(descriptor.ctypes.data, row[None], each[0], each[1])
    estimates = proven.mean(axis=1)
    best = np.maximum.accumulate(logits64(softmax.weight, softmax.bias, hidden_states), axis=1)
    first = LANES * FIRST  # rows, of which the best estimates give the first threshold
    best[:, :first] = best[:, first - 1 : first]
    for max_error in (1e-3, 1e-15):
        uppers = estimates + reach(max_error, 1, D - F) * (proven[:, 1] - estimates)
        at_once = (uppers[:, 1:] >= best[:, :-1]).sum()
        head = sketch_head(softmax, arrays, fallback=FullHead(softmax))
        top = head.with_knobs(max_error=max_error).topk(hidden_states, 1)
        assert top.scanned.sum() <= 2 * at_once + 2 * SEEDS * len(hidden_states)


@pytest.mark.parametrize("vocab_size", [1024, 1021, 3001])
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.25, 2.0])
def test_the_estimated_log_z_is_near_the_true_one(vocab_size: int, k: int, scale: float) -> None:
    softmax = make_softmax(vocab_size, 192, scale=2)
    arrays, hidden_states = usual_sketch(softmax), make_hidden(40, 192, scale=0.6)
    true = FullHead(softmax).best_with_log_z(hidden_states, k, scale)
    for max_error in (1e-15, 1e-3):
        full = FullHead(softmax)
        head = SketchHead(softmax, arrays, fallback=full, knobs={"max_error": max_error})
        found = head.best_with_log_z(hidden_states, k, scale)
        np.testing.assert_array_equal(found.ids, true.ids)
        np.testing.assert_array_equal(found.logits, true.logits)
        off = found.log_z[:, VALUE] - (scale * true.log_z[:, TOP] + true.log_z[:, VALUE])
        assert np.abs(off).max() < 0.25
        assert np.sqrt((off**2).mean()) < 0.08
        assert (found.errors >= 0).all()
        assert found.errors.any()
        assert not found.proven.any()
        assert (found.log_z[:, [LOW, HIGH]] == [-np.inf, np.inf]).all()
        assert found.scanned.mean() < vocab_size / 2
