"""SVD-softmax's plan answers as the head on the host does, where float32 does not decide."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans.screen import LONGEST
from logitsieve.gpu.plans.svd import SvdPlan, chunk_of, fits, preview_on
from logitsieve.heads import ExactHead, Softmax, SvdHead
from logitsieve.index_builder.fit.svd import preview_arrays
from tests.gpu.answers import assert_answers, assert_refused
from tests.gpu.softmaxes import on_gpu, tensor
from tests.synthetic import make_hidden, make_softmax


def assert_clear(head: SvdHead, hidden: np.ndarray, candidates: int) -> None:
    """No row's last candidate is within rounding of the next, unless they are equal."""
    ordered = -np.sort(-head.scores(hidden), axis=1)
    if candidates < ordered.shape[1]:
        gap = ordered[:, candidates - 1] - ordered[:, candidates]
        assert ((gap == 0) | (gap > 1e-5)).all()


def assert_same(
    softmax: Softmax, hidden: np.ndarray, k: int, candidates: int, width: int = 8,
    dtype: str = "float32",
) -> SvdPlan:  # fmt: skip
    stored, matrix = on_gpu(softmax, dtype)
    arrays = preview_arrays(stored, stored.dim)
    preview = preview_on(matrix.weight.device, arrays, matrix.rows, width)
    plan = SvdPlan(matrix, preview, tensor(hidden), k, candidates)
    plan.run()
    knobs = {"width": width, "candidates": candidates}
    head = SvdHead.from_arrays(stored, arrays, fallback=ExactHead(stored), threads=1, knobs=knobs)
    good = np.isfinite(hidden).all(axis=1)
    assert_clear(head, hidden[good], candidates)
    assert_answers(plan.output, head.topk(hidden[good], k), good)
    return plan


@pytest.mark.parametrize(
    ("dtype", "rows", "vocab_size", "dim", "k", "width", "candidates"),
    [
        ("float32", 1, 301, 24, 5, 8, 40),
        ("float32", 2, 299, 33, 1, 33, 7),
        ("float32", 17, 301, 9, 5, 3, 20),
        ("float32", 1, 163, 17, 64, 5, 163),
        ("float16", 3, 257, 130, 5, 130, 9),
        ("float16", 1, 257, 20, 64, 7, 64),
        ("bfloat16", 2, 701, 40, 5, 17, 33),
        ("bfloat16", 5, 700, 12, 1, 1, 1),
    ],
)
def test_answers_are_the_heads(
    dtype: str, rows: int, vocab_size: int, dim: int, k: int, width: int, candidates: int
) -> None:
    softmax, hidden = make_softmax(vocab_size, dim), make_hidden(rows, dim)
    assert_same(softmax, hidden, k, candidates, width, dtype)


def test_equal_rows_are_candidates_by_the_lower_id() -> None:
    weight = np.repeat(make_softmax(100).weight, 3, axis=0)
    assert_same(Softmax(weight, np.zeros(300, np.float32)), make_hidden(1), 5, 8)


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_of_zeros_tie_everything(rows: int) -> None:
    softmax, hidden = make_softmax(), make_hidden(rows)
    hidden[0] = 0
    plan = assert_same(Softmax(softmax.weight, np.zeros(300, np.float32)), hidden, 4, 30)
    assert plan.output.ids[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_cannot_be_answered_have_no_ids(value: float) -> None:
    hidden = make_hidden(5)
    hidden[3, 7] = value
    assert_refused(assert_same(make_softmax(), hidden, 4, 30).output, 3)


@pytest.mark.parametrize("rows", [1, 2])
def test_more_scores_than_one_program_looks_through(rows: int) -> None:
    softmax = make_softmax(2 * LONGEST + 5, 4)
    assert_same(softmax, make_hidden(rows, 4), 5, 60, 3)


def test_a_chunk_holds_all_scores_or_twice_what_is_kept() -> None:
    assert chunk_of(300, 300) == chunk_of(LONGEST, LONGEST) == LONGEST
    assert chunk_of(150_000, 5000) == 2 * LONGEST
    assert fits(150_000, LONGEST)
    assert fits(2 * LONGEST, 2 * LONGEST)
    assert not fits(150_000, LONGEST + 1)
