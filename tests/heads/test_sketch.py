"""sketch: the hardest bounds, draws and refusals; tests/attacks judges its answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import ExactHead, SketchHead, Softmax
from logitsieve.heads.exact import DrawOptions
from logitsieve.heads.sketch import GRADES
from logitsieve.index_builder.fit.sketch import Widths
from logitsieve.kernels.simd.shorts import INFINITE
from logitsieve.kernels.topk.merge import HIGH, LOW
from tests.oracle import best, logits64
from tests.refusals import refused
from tests.synthetic import (
    STEEP,
    basis_of,
    decaying,
    encode,
    make_graded,
    make_head,
    make_hidden,
    make_softmax,
    rotated,
    sketch_arrays,
    sketch_head,
    usual_sketch,
)


def bounded(
    softmax: Softmax, widths: Widths | int = STEEP, seen: np.ndarray | None = None, share: float = 1
) -> SketchHead:
    """A sketch turned towards the contexts `seen`, of that share of all coordinates."""
    if seen is None:
        seen = make_hidden(64, softmax.dim, seed=9)
    order = np.random.default_rng(8).permutation(softmax.vocab_size).astype(np.int32)
    count = max(1, int(share * softmax.dim))
    turning, stretch = rotated(softmax, seen, count)
    return sketch_head(softmax, sketch_arrays(softmax, turning, widths, order, stretch))


def test_the_widest_sketch_answers_where_all_codes_are_the_largest() -> None:
    """Sums of products with unsigned bytes exceed 32 bits there; those with codes do not."""
    random = np.random.default_rng(0)
    weight = np.linspace(2, 1, 3000)[:, None] + 1e-3 * random.standard_normal((3000, 1030))
    softmax = Softmax(weight.astype(np.float32), np.zeros(3000, np.float32))
    hidden = (1 + 1e-3 * random.standard_normal((9, 1030))).astype(np.float32)
    head = SketchHead(softmax, encode(softmax, np.eye(1030), Widths(1008, 1024)))
    top, wanted = head.topk(hidden, 5), ExactHead(softmax).topk(hidden, 5)
    np.testing.assert_equal(top[:2], wanted[:2])
    assert top.scanned.max() < 300
    bounds, true = head.bounds(hidden[0], 5), logits64(softmax.weight, softmax.bias, hidden[:1])[0]
    assert np.isin(wanted.ids[0], bounds.ids).all()
    off = 2.0**-24 * true
    assert ((bounds.lower <= true + off) & (true - off <= bounds.upper)).all()
    assert (bounds.upper - bounds.lower).max() < 100


def test_a_bound_beyond_float32_drops_nothing() -> None:
    """Coordinates far longer than rows and contexts: parts of a logit overflow, the logit not."""
    random = np.random.default_rng(0)
    weight = (1e15 * random.standard_normal((600, 40))).astype(np.float32)
    softmax = Softmax(weight, np.zeros(600, np.float32))
    left, right = (np.linalg.qr(random.standard_normal((40, 40)))[0] for _ in range(2))
    turned = left @ np.diag(10.0 ** random.uniform(-1.5, 1.5, 40)) @ right
    head = SketchHead(softmax, encode(softmax, turned, Widths(16, 64)))
    basis_DD, rows_VD = basis_of(head._arrays), weight[:60].astype(np.float64)
    coded_VD = (rows_VD @ np.linalg.inv(basis_DD))[:, :16] @ basis_DD[:16]
    unit_VD = rows_VD / np.linalg.norm(rows_VD, axis=1)[:, None]
    # Along each row a little, and as far as can be against the part of it that is coded.
    against_VD = (coded_VD * unit_VD).sum(axis=1)[:, None] * unit_VD - coded_VD
    against_VD /= np.linalg.norm(against_VD, axis=1)[:, None]
    size = 9e37 / np.linalg.norm(weight, axis=1).max()
    hidden = ((against_VD + 0.05 * unit_VD) * size).astype(np.float32)
    true = logits64(weight, softmax.bias, hidden)
    np.testing.assert_array_equal(head.topk(hidden, 5).ids, best(true, 5))
    bounds = head.bounds(hidden[0], 5)
    printed = true[0].astype(np.float32)
    assert ((bounds.lower <= printed) & (printed <= bounds.upper)).all()
    assert bounds.log_z_low <= true[0].max() <= bounds.log_z_high


@pytest.mark.parametrize(("widths", "share"), [(Widths(32, 64), 0.5), (Widths(32, 64), 1), (32, 1)])
def test_a_decaying_spectrum_needs_few_rows(widths: Widths | int, share: float) -> None:
    softmax, hidden = decaying(4000, 128)
    top = bounded(softmax, widths, hidden, share).topk(hidden, 5)
    assert top.scanned.mean() < 200
    np.testing.assert_array_equal(top.ids, ExactHead(softmax).topk(hidden, 5).ids)


@pytest.mark.parametrize("widths", [Widths(32, 64), 32])
def test_candidates_are_the_rows_computed_and_upper_bounds_the_others(widths: Widths | int) -> None:
    softmax, hidden = decaying(2000, 96)
    head = bounded(softmax, widths, hidden)
    true = logits64(softmax.weight, softmax.bias, hidden)
    for k in (1, 7, 400):
        found = head.candidates(hidden, k)
        for row in range(len(hidden)):
            ids = found.ids[found.offsets[row] : found.offsets[row + 1]]
            logits = found.logits[found.offsets[row] : found.offsets[row + 1]]
            assert len(np.unique(ids)) == len(ids)
            np.testing.assert_array_equal(logits, true[row, ids].astype(np.float32))
            assert np.isin(best(true[row : row + 1], k), ids).all()
            assert np.delete(true[row], ids).max(initial=-np.inf) <= found.upper[row]


def test_many_draws_by_all_logits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax, hidden = decaying(2000, 64)
    head = bounded(softmax, Widths(32, 64), hidden)
    seeds = np.arange(len(hidden), dtype=np.uint64)
    ids, _, scanned = head.draw(hidden, DrawOptions(40, seeds, 3, 1.0))
    monkeypatch.setattr("logitsieve.heads.sketch.PRODUCTS_A_DRAW", 2000 * 64 // 20)
    for samples, by_all in ((19, False), (20, True), (40, True)):
        again, log_z, computed = head.draw(hidden, DrawOptions(samples, seeds, 3, 1.0))
        np.testing.assert_array_equal(again, ids[:, :samples])
        assert (log_z[:, LOW] <= log_z[:, HIGH]).all()
        assert by_all == (computed == 2000).all()
    assert (scanned < 2000).any()


@pytest.mark.parametrize("by_all", [False, True])
def test_noise_begins_at_the_first_id(monkeypatch: pytest.MonkeyPatch, by_all: bool) -> None:
    """Rows 960 .. 1919 of W draw what the whole draws of them."""
    softmax, hidden = decaying(2000, 64)
    monkeypatch.setattr("logitsieve.heads.sketch.PRODUCTS_A_DRAW", 10**9 if by_all else 0)
    own = slice(960, 1920)
    part = Softmax(softmax.weight[own].copy(), softmax.bias[own].copy())
    options = DrawOptions(20, np.arange(len(hidden), dtype=np.uint64), 3, 0.7, first_id=960)
    ids, _, _ = bounded(part, Widths(32, 64), hidden).draw(hidden, options)
    others = np.delete(np.arange(2000, dtype=np.int32), own)
    ends, none = np.arange(len(hidden) + 1) * others.size, np.full(others.size, -np.inf)
    edits = ends, np.tile(others, len(hidden)), np.tile(none, len(hidden))
    whole = ExactHead(softmax).draw(hidden, options._replace(edits=edits, first_id=0))
    np.testing.assert_array_equal(ids + 960, whole.ids)


def test_all_that_min_p_leaves_is_computed_and_little_else() -> None:
    softmax, hidden = decaying(6000, 64)
    seeds = np.arange(len(hidden), dtype=np.uint64)
    options = DrawOptions(3, seeds, 0, 1.3, min_p=0.05)
    drawn = bounded(softmax, Widths(32, 64), hidden).draw(hidden, options)
    exact = ExactHead(softmax).draw(hidden, options)
    np.testing.assert_array_equal(drawn.ids, exact.ids)
    assert (drawn.log_z[:, HIGH] - drawn.log_z[:, LOW] < 1e-10).all()
    assert drawn.scanned.max() < 1000


def test_all_rows_together_say_more_of_log_z_than_each_alone() -> None:
    """Norms that say nothing leave the bounds of each row, by coarse codes and by fine ones."""
    softmax, hidden = decaying(4000, 64, 1 / 4, 10)
    head = bounded(softmax, Widths(32, 128))
    alone = sketch_head(softmax, {**head._arrays, "norms": np.full(6, 1e30)})
    hidden /= 50
    widths = [np.ptp(each.log_z(hidden, 1.0)[:, LOW:], axis=1) for each in (head, alone)]
    assert (widths[0] < 0.8 * widths[1]).all()
    options = DrawOptions(1, np.arange(10, dtype=np.uint64), width=0.1)
    assert head.draw(hidden, options).scanned.max() < 10
    assert (alone.draw(hidden, options).scanned == 4000).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_row_without_bounds_is_refused_by_name(bad: float) -> None:
    softmax, hidden = decaying(600, 32)
    hidden[3, 1] = bad
    with refused("hidden[0]"):
        bounded(softmax).bounds(hidden[3], 2)


Spoil = tuple[str, Callable[[np.ndarray], np.ndarray]]
EITHER: dict[str, Spoil] = {
    "no fine codes": ("fine", lambda array: array[:, :0]),
    "half a quad": ("coarse", lambda array: array[:, :-32]),
    "coarse codes wider than fine ones": ("coarse", lambda array: np.repeat(array, 9, axis=1)),
    "a direction too many": ("directions", lambda array: np.repeat(array, 2, axis=0)),
}
SPOILED: dict[Widths | int, dict[str, Spoil]] = {
    STEEP: {
        **EITHER,
        "fine codes of 65 bytes": ("fine", lambda array: np.pad(array, ((0, 0), (0, 1)))),
        "a stretch of 0": ("stretch", lambda array: 0 * array),
    },
    16: {
        **EITHER,
        "another step": ("starts", lambda array: np.add(array, [*[0] * 8, 5])),
        "a start below 0": ("starts", lambda array: array * [*[-1] * 8, 1]),
        "numbers without end": ("starts", lambda array: np.array([*[INFINITE] * 8, 10])),
        "first codes of another width": ("first", lambda array: array[:, 16:]),
        "no middle codes": ("middle", lambda array: array[:, :0]),
        "middle codes of another width": ("middle", lambda array: array[:, 16:]),
        "a piece too many": ("fine", lambda array: np.pad(array, ((0, 0), (0, 16)))),
        "eight bits of no coordinate": ("coarse", lambda array: array[:, 256:]),
    },
}


@pytest.mark.parametrize(
    ("widths", "name"), [(widths, name) for widths, cases in SPOILED.items() for name in cases]
)
def test_codes_that_a_kernel_could_not_follow_are_refused(widths: Widths | int, name: str) -> None:
    softmax = make_softmax()
    arrays, (part, spoil) = usual_sketch(softmax, widths), SPOILED[widths][name]
    arrays[part] = np.ascontiguousarray(spoil(arrays[part]), arrays[part].dtype)
    with refused("arrays"):
        SketchHead.from_arrays(softmax, arrays, fallback=None, threads=1, knobs={})


@pytest.mark.parametrize("other", ["stretch", "triangle", "order"])
def test_levels_of_earlier_versions_are_refused_by_name(other: str) -> None:
    softmax = make_softmax()
    arrays = usual_sketch(softmax, 16)
    shapes = {"stretch": (np.ones(24, np.float32)), "order": np.arange(300, dtype=np.int32)}
    arrays |= {other: shapes.get(other, np.eye(24, dtype=np.float32))}
    with refused("arrays", f"{other}', as the levels of earlier versions did"):
        SketchHead.from_arrays(softmax, arrays, fallback=None, threads=1, knobs={})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_error", GRADES)
def test_calls_of_more_rows_than_a_limit_are_answered_by_exact(
    max_error: float, threads: int
) -> None:
    """With the same bits, but for the rows scanned."""
    softmax, hidden = decaying(2000, 128)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden, softmax.dim)[0], 32)
    options: dict[str, Any] = {"fallback": ExactHead(softmax), "knobs": {"max_error": max_error}}
    head = SketchHead(softmax, arrays, threads=threads, **options)
    for most in (1, 3, 40):
        limited = head.up_to(most)
        for rows in (1, 3, 4, 40):
            top, wanted = limited.topk(hidden[:rows], 5), head.topk(hidden[:rows], 5)
            np.testing.assert_equal((*top[:3], top.fallback), (*wanted[:3], wanted.fallback))
            assert (top.exact == (max_error == 0)).all()
            assert (top.scanned == 2000).all() if rows > most else top.scanned.max() < 2000


def test_log_z_and_draws_take_the_dense_product_with_levels() -> None:
    softmax, hidden = decaying(2000, 128)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden, softmax.dim)[0], 32)
    head, exact = SketchHead(softmax, arrays, knobs={"max_error": 0.0}), ExactHead(softmax)
    log_z = head.log_z(hidden, 1.0, width=1e-4)
    assert (log_z[:, HIGH] - log_z[:, LOW] <= 1e-4).all()
    seeds = np.arange(len(hidden), dtype=np.uint64)
    ids, _, scanned = head.draw(hidden, DrawOptions(1, seeds))
    np.testing.assert_array_equal(ids, exact.draw(hidden, DrawOptions(1, seeds)).ids)
    assert (scanned == 2000).all()


def test_the_knob_is_a_chance_and_a_sketch_without_levels_proves() -> None:
    softmax, hidden = make_softmax(), make_hidden(3)
    head = make_graded(softmax, max_error=0.3)
    assert (head.max_error, head.proves, make_graded(softmax).max_error) == (0.3, False, 1e-15)
    assert not head.topk(hidden, 5).exact.any()
    proof = head.with_knobs(max_error=0)
    assert (proof.max_error, proof.proves, head.max_error) == (0.0, True, 0.3)
    assert proof.topk(hidden, 5).exact.all()
    steep = make_head("sketch", softmax, max_error=0.3)
    assert (steep.knobs, steep.max_error, steep.proves) == ({"max_error": 0.0}, 0.0, True)
    assert steep.topk(hidden, 5).exact.all()
    for wrong in (-1e-9, 1.0, np.nan):
        with refused("knobs.max_error"):
            head.with_knobs(max_error=wrong)
