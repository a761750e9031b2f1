"""The screen's plan answers as the head on the host does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans import Fallback
from logitsieve.gpu.plans.screen import ALONE, LONGEST, RoutedPlan, screen_on
from logitsieve.heads import ExactHead, ScreenHead, Softmax
from tests.gpu.answers import (
    assert_answers,
    assert_refused,
    exact_behind,
    nothing_behind,
)
from tests.gpu.softmaxes import on_gpu, sweep, tensor
from tests.synthetic import make_hidden, make_softmax, screen_arrays

Arrays = dict[str, np.ndarray]
SOFTMAX = make_softmax()
ARRAYS = screen_arrays(SOFTMAX, most=40)


def head_of(softmax: Softmax, arrays: Arrays, **knobs: float) -> ScreenHead:
    exact = ExactHead(softmax)
    return ScreenHead.from_arrays(softmax, arrays, fallback=exact, threads=1, knobs=knobs)


def assert_same(
    softmax: Softmax, arrays: Arrays, hidden: np.ndarray, k: int, dtype: str = "float32",
    fallback: Fallback | None = None, probes: int = 1, escalate: float = -1.0,
) -> RoutedPlan:  # fmt: skip
    stored, matrix = on_gpu(softmax, dtype)
    behind, screen = fallback or exact_behind(matrix), screen_on(matrix.weight.device, arrays)
    plan = RoutedPlan(matrix, screen, tensor(hidden), k, behind, probes=probes, escalate=escalate)
    plan.run()
    head = head_of(stored, arrays, probes=probes, escalate=escalate)
    assert_answers(plan.output, head.topk(hidden, k))
    return plan


def lists(*ids: np.ndarray | list[int]) -> Arrays:
    """`offsets` and `ids` of these lists."""
    return {
        "offsets": np.cumsum([0, *map(len, ids)]).astype(np.int32),
        "ids": np.concatenate(ids).astype(np.int32),
    }


@pytest.mark.parametrize(
    ("dtype", "rows", "vocab_size", "dim", "k", "probes", "escalate"),
    sweep(
        ("float32", 1, 301, 24, 5, 1, -1.0),
        ("float32", 2, 301, 33, 5, 3, 0.2),
        ("float32", 17, 301, 9, 5, 1, 0.3),
        ("float32", 3, 2049, 7, 64, 3, 0.1),
        ("float16", 1, 299, 31, 1, 3, 0.2),
        ("bfloat16", 2, 257, 65, 5, 1, 0.0),
        ("bfloat16", 5, 257, 20, 1, 3, -1.0),
        more=[("float32", 17, 163, 17, 5, 3, -1.0), ("float16", 17, 299, 16, 1, 1, 0.1)],
    ),
)
def test_answers_are_the_heads(
    dtype: str, rows: int, vocab_size: int, dim: int, k: int, probes: int, escalate: float
) -> None:
    softmax = make_softmax(vocab_size, dim)
    arrays = screen_arrays(softmax, clusters=7, most=70 if k > 5 else 22)
    hidden = make_hidden(rows, dim)
    assert_same(softmax, arrays, hidden, k, dtype, probes=probes, escalate=escalate)


@pytest.mark.parametrize("rows", [2, 6])
def test_centroids_one_bit_apart_are_told_apart(rows: int) -> None:
    """float32 scores cannot order them; how many ids were scanned says which was taken."""
    centroids = np.repeat(ARRAYS["centroids"][:1], 6, axis=0)
    centroids[:, 0] += np.arange(6, dtype=np.float32) * np.spacing(centroids[0, 0])
    arrays = {"centroids": centroids, **lists(*(np.arange(20 + c) for c in range(6)))}
    taken = set()
    for probes in (1, 2):
        plan = assert_same(SOFTMAX, arrays, make_hidden(rows), 3, probes=probes)
        taken |= set(plan.output.scanned.tolist())
    assert len(taken) > 2


@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("escalate", [-1.0, 0.1])
def test_of_equal_centroids_the_lower_is_taken(probes: int, escalate: float) -> None:
    centroids = np.repeat(ARRAYS["centroids"][:1], 6, axis=0)
    arrays = {"centroids": centroids, **lists(*(np.arange(20 + c) for c in range(6)))}
    assert_same(SOFTMAX, arrays, make_hidden(5), 3, probes=probes, escalate=escalate)


@pytest.mark.parametrize("escalate", [-1.0, 0.1])
def test_rows_of_zeros_tie_everything(escalate: float) -> None:
    hidden = make_hidden(5)
    hidden[[0, 3]] = 0
    plain = Softmax(SOFTMAX.weight, np.zeros(300, np.float32))
    assert_same(plain, ARRAYS, hidden, 5, probes=3, escalate=escalate)


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**40])
def test_scales(scale: float) -> None:
    softmax = make_softmax(scale=scale)
    assert_same(softmax, ARRAYS, make_hidden(3, scale=scale), 4, probes=2, escalate=0.2)


def test_a_row_along_its_centroid_is_escalated_by_the_last_bit() -> None:
    hidden = np.repeat(ARRAYS["centroids"], 3, axis=0)[:9]
    hidden *= np.linspace(0.3, 7, 9, dtype=np.float32)[:, None]
    plan = assert_same(SOFTMAX, ARRAYS, hidden, 4, escalate=1.0)
    assert 0 < plan.output.exact.sum() < 9


def test_clusters_have_thresholds_of_their_own() -> None:
    reaches = np.array([0.2, 4, 1, 0.5, 2, 3], np.float32)
    arrays, hidden = {**ARRAYS, "reaches": reaches}, make_hidden(9)
    plan = assert_same(SOFTMAX, arrays, hidden, 4, probes=2, escalate=0.2)
    assert 0 < plan.output.exact.sum() < 9
    common = assert_same(SOFTMAX, ARRAYS, hidden, 4, probes=2, escalate=0.2)
    assert common.output.exact.tolist() != plan.output.exact.tolist()


@pytest.mark.parametrize("rows", [3, 5])
def test_lists_that_are_too_short_are_passed_on(rows: int) -> None:
    arrays = {
        "centroids": ARRAYS["centroids"],
        **lists(*(np.arange(c, 3 * c + 2) for c in range(6))),
    }
    for probes in (1, 3):
        assert_same(SOFTMAX, arrays, make_hidden(rows), 7, probes=probes)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("k", [8, 9])
def test_ids_of_several_lists_count_once(rows: int, k: int) -> None:
    """Eight different ids in three lists of six."""
    three = lists([1, 5, 9, 200, 3, 7], [7, 3, 8, 5, 9, 1], [9, 8, 4, 1, 3, 5])
    arrays = {"centroids": ARRAYS["centroids"][:3], **three}
    plan = assert_same(SOFTMAX, arrays, make_hidden(rows), k, probes=3)
    assert (plan.output.exact == (k > 8)).all()


@pytest.mark.parametrize("rows", sweep(1, 5, more=[2]))
def test_many_centroids_are_scored_together(rows: int) -> None:
    softmax = make_softmax(300, 520)
    arrays = screen_arrays(softmax, clusters=130, most=24)
    assert arrays["centroids"].size > ALONE
    assert_same(softmax, arrays, make_hidden(rows, 520), 5, probes=2, escalate=0.08)


@pytest.mark.parametrize("k", [7, 41])
def test_room_for_more_candidates_than_one_program_ranks(k: int) -> None:
    """One list is so long that rows of the others have chunks that are empty."""
    softmax, hidden = make_softmax(9000), make_hidden(1)
    centroids = np.concatenate([-hidden, ARRAYS["centroids"]])
    ids = np.split(ARRAYS["ids"], ARRAYS["offsets"][1:-1])
    arrays = {"centroids": centroids, **lists(np.arange(LONGEST), *ids)}
    assert_same(softmax, arrays, hidden, k, probes=2)


@pytest.mark.parametrize("value", sweep(np.nan, 3e38, more=[np.inf, -np.inf]))
@pytest.mark.parametrize("escalate", [-1.0, 0.2])
def test_rows_that_cannot_be_answered_have_no_ids(value: float, escalate: float) -> None:
    hidden, good = make_hidden(6), np.array([0, 2, 3, 5])
    hidden[[1, 4], 5] = value
    _, matrix = on_gpu(SOFTMAX)
    screen = screen_on(matrix.weight.device, ARRAYS)
    plan = RoutedPlan(
        matrix, screen, tensor(hidden), 5, exact_behind(matrix), probes=2, escalate=escalate
    )
    plan.run()
    top = head_of(SOFTMAX, ARRAYS, probes=2, escalate=escalate).topk(hidden[good], 5)
    assert_answers(plan.output, top, good)
    assert_refused(plan.output, 1)
    assert_refused(plan.output, 4)


def test_nothing_of_one_batch_is_left_in_the_next() -> None:
    knobs = {"probes": 2, "escalate": 0.2}
    plan = assert_same(SOFTMAX, ARRAYS, make_hidden(5), 5, probes=2, escalate=0.2)
    plan.hidden[:] = float("nan")
    plan.run()
    other = make_hidden(5, seed=9)
    plan.hidden.copy_(tensor(other))
    plan.run()
    assert_answers(plan.output, head_of(SOFTMAX, ARRAYS, **knobs).topk(other, 5))


def test_no_fallback_is_made_where_every_list_is_long_enough() -> None:
    shortest = int(np.diff(ARRAYS["offsets"]).min())
    assert_same(SOFTMAX, ARRAYS, make_hidden(2), shortest, fallback=nothing_behind)
    with pytest.raises(AssertionError, match="asked for"):
        assert_same(SOFTMAX, ARRAYS, make_hidden(2), shortest + 1, fallback=nothing_behind)


def test_more_probes_than_clusters_means_all_of_them() -> None:
    assert_same(SOFTMAX, ARRAYS, make_hidden(2), 5, probes=64)
