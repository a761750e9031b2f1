"""sketch: the hardest bounds, draws and refusals; tools/attacks judges its answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from logitsieve.api.requests import Sampling
from logitsieve.heads import FullHead, SketchHead, Softmax
from logitsieve.heads.sketch import GRADES
from logitsieve.kernels.simd.shorts import INFINITE
from logitsieve.kernels.topk.merge import HIGH, LOW
from tests.bounds import bounds_of
from tests.oracle import best, logits64
from tests.refusals import refused
from tests.synthetic import (
    basis_of,
    decaying,
    make_head,
    make_hidden,
    make_softmax,
    rotated,
    sketch_arrays,
    sketch_head,
    usual_sketch,
)

pytestmark = pytest.mark.xdist_group("sketch")  # one worker of `make test-avx2` compiles it


def bounded(softmax: Softmax, seen: np.ndarray, first: int = 32) -> SketchHead:
    """A sketch turned towards the contexts `seen`."""
    return sketch_head(softmax, sketch_arrays(softmax, rotated(softmax, seen), first))


def test_the_widest_sketch_answers_where_all_codes_are_the_largest() -> None:
    """Sums of products with unsigned bytes exceed 32 bits there; those with codes do not."""
    random = np.random.default_rng(0)
    weight = np.linspace(2, 1, 3000)[:, None] + 1e-3 * random.standard_normal((3000, 1030))
    softmax = Softmax(weight.astype(np.float32), np.zeros(3000, np.float32))
    hidden_states = (1 + 1e-3 * random.standard_normal((9, 1030))).astype(np.float32)
    head = sketch_head(softmax, sketch_arrays(softmax, np.eye(1030), 1024))
    top, wanted = head.topk(hidden_states, 5), FullHead(softmax).topk(hidden_states, 5)
    np.testing.assert_equal(top[:2], wanted[:2])
    assert top.scanned.max() < 300
    ids, lower, upper = bounds_of(head, hidden_states[:1], 5)
    true = logits64(softmax.weight, softmax.bias, hidden_states[:1])[0]
    assert np.isin(wanted.ids[0], ids).all()
    off = 2.0**-24 * true
    assert ((lower <= true + off) & (true - off <= upper)).all()
    assert (upper - lower).max() < 100


def test_a_bound_beyond_float32_drops_nothing() -> None:
    """Coordinates far longer than rows and contexts: parts of a logit overflow, the logit not."""
    random = np.random.default_rng(0)
    weight = (1e15 * random.standard_normal((600, 40))).astype(np.float32)
    softmax = Softmax(weight, np.zeros(600, np.float32))
    left, right = (np.linalg.qr(random.standard_normal((40, 40)))[0] for _ in range(2))
    turned = left @ np.diag(10.0 ** random.uniform(-1.5, 1.5, 40)) @ right
    head = sketch_head(softmax, sketch_arrays(softmax, turned, 16))
    basis_DD, rows_VD = basis_of(head._arrays), weight[:60].astype(np.float64)
    coded_VD = (rows_VD @ np.linalg.inv(basis_DD))[:, :16] @ basis_DD[:16]
    unit_VD = rows_VD / np.linalg.norm(rows_VD, axis=1)[:, None]
    # Along each row a little, and as far as can be against the part of it that is coded.
    against_VD = (coded_VD * unit_VD).sum(axis=1)[:, None] * unit_VD - coded_VD
    against_VD /= np.linalg.norm(against_VD, axis=1)[:, None]
    size = 9e37 / np.linalg.norm(weight, axis=1).max()
    hidden_states = ((against_VD + 0.05 * unit_VD) * size).astype(np.float32)
    true = logits64(weight, softmax.bias, hidden_states)
    np.testing.assert_array_equal(head.topk(hidden_states, 5).ids, best(true, 5))
    _, lower, upper = bounds_of(head, hidden_states[:1], 5)
    printed = true[0].astype(np.float32)
    assert ((lower <= printed) & (printed <= upper)).all()


@pytest.mark.parametrize("first", [16, 32, 128, 256])
def test_a_decaying_spectrum_needs_few_rows(first: int) -> None:
    softmax, hidden_states = decaying(4000, 128)
    top = bounded(softmax, hidden_states, first).topk(hidden_states, 5)
    assert top.scanned.mean() < 200
    np.testing.assert_array_equal(top.ids, FullHead(softmax).topk(hidden_states, 5).ids)


def test_candidates_are_the_rows_computed_and_upper_bounds_the_others() -> None:
    softmax, hidden_states = decaying(2000, 96)
    head = bounded(softmax, hidden_states)
    true = logits64(softmax.weight, softmax.bias, hidden_states)
    for k in (1, 7, 400):
        found = head.candidates(hidden_states, k)
        for row in range(len(hidden_states)):
            ids = found.ids[found.offsets[row] : found.offsets[row + 1]]
            logits = found.logits[found.offsets[row] : found.offsets[row + 1]]
            assert len(np.unique(ids)) == len(ids)
            np.testing.assert_array_equal(logits, true[row, ids].astype(np.float32))
            assert np.isin(best(true[row : row + 1], k), ids).all()
            assert np.delete(true[row], ids).max(initial=-np.inf) <= found.upper[row]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_row_without_candidates_is_refused_by_name(bad: float) -> None:
    softmax, hidden_states = decaying(600, 32)
    hidden_states[3, 1] = bad
    with refused("hidden_states[0]"):
        sketch_head(softmax, usual_sketch(softmax)).candidates(hidden_states[3], 2)


Spoil = tuple[str, Callable[[np.ndarray], np.ndarray]]
SPOILED: dict[str, Spoil] = {
    "no fine codes": ("fine", lambda array: array[:, :0]),
    "half a quad": ("coarse", lambda array: array[:, :-32]),
    "coarse codes wider than the widest": ("coarse", lambda array: np.repeat(array, 99, axis=1)),
    "a direction too many": ("directions", lambda array: np.repeat(array, 2, axis=0)),
    "another step": ("starts", lambda array: np.add(array, [*[0] * 8, 5])),
    "a start below 0": ("starts", lambda array: array * [*[-1] * 8, 1]),
    "numbers without end": ("starts", lambda array: np.array([*[INFINITE] * 8, 10])),
    "first codes of another width": ("first", lambda array: array[:, 16:]),
    "no middle codes": ("middle", lambda array: array[:, :0]),
    "middle codes of another width": ("middle", lambda array: array[:, 16:]),
    "a piece too many": ("fine", lambda array: np.pad(array, ((0, 0), (0, 16)))),
    "eight bits of no coordinate": ("coarse", lambda array: array[:, 256:]),
}


@pytest.mark.parametrize("name", SPOILED)
def test_codes_that_a_kernel_could_not_follow_are_refused(name: str) -> None:
    softmax = make_softmax()
    arrays, (part, spoil) = usual_sketch(softmax), SPOILED[name]
    arrays[part] = np.ascontiguousarray(spoil(arrays[part]), arrays[part].dtype)
    with refused("arrays"):
        SketchHead.from_arrays(softmax, arrays, fallback=None, threads=1, knobs={})


@pytest.mark.parametrize("name", ["first", "middle", "starts"])
def test_a_part_of_the_format_before_levels_is_refused_by_name(name: str) -> None:
    arrays = usual_sketch(softmax := make_softmax())
    del arrays[name]
    with refused("arrays", f"holds no tensor '{name}'"):
        SketchHead.from_arrays(softmax, arrays, fallback=None, threads=1, knobs={})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_error", GRADES)
def test_calls_of_more_rows_than_a_limit_are_answered_by_exact(
    max_error: float, threads: int
) -> None:
    """With the same bits, but for the rows scanned."""
    softmax, hidden_states = decaying(2000, 128)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden_states), 32)
    options: dict[str, Any] = {"fallback": FullHead(softmax), "knobs": {"max_error": max_error}}
    head = SketchHead(softmax, arrays, threads=threads, **options)
    for most in (1, 3, 40):
        limited = head.up_to(most)
        for rows in (1, 3, 4, 40):
            top, wanted = limited.topk(hidden_states[:rows], 5), head.topk(hidden_states[:rows], 5)
            np.testing.assert_equal((*top[:3], top.fallback), (*wanted[:3], wanted.fallback))
            assert (top.proven == (max_error == 0)).all()
            assert (top.scanned == 2000).all() if rows > most else top.scanned.max() < 2000


def test_log_z_and_draws_take_the_dense_product() -> None:
    softmax, hidden_states = decaying(2000, 128)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden_states), 32)
    head, full = SketchHead(softmax, arrays, knobs={"max_error": 0.0}), FullHead(softmax)
    log_z = head.log_z(hidden_states, 1.0, width=1e-4)
    assert (log_z[:, HIGH] - log_z[:, LOW] <= 1e-4).all()
    seeds = np.arange(len(hidden_states), dtype=np.uint64)
    ids, _, scanned = head.draw(hidden_states, Sampling(1, seeds))
    np.testing.assert_array_equal(ids, full.draw(hidden_states, Sampling(1, seeds)).ids)
    assert (scanned == 2000).all()


def test_the_knob_is_a_chance() -> None:
    softmax, hidden_states = make_softmax(), make_hidden(3)
    head = make_head("sketch", softmax, max_error=0.3)
    usual = make_head("sketch", softmax)
    assert (head.max_error, head.proves, usual.max_error) == (0.3, False, 1e-15)
    assert not head.topk(hidden_states, 5).proven.any()
    proof = head.with_knobs(max_error=0)
    assert (proof.max_error, proof.proves, head.max_error) == (0.0, True, 0.3)
    assert proof.topk(hidden_states, 5).proven.all()
    for wrong in (-1e-9, 1.0, np.nan):
        with refused("knobs.max_error"):
            head.with_knobs(max_error=wrong)
