"""The exact plan's answers are the exact head's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans import exact
from logitsieve.gpu.plans.exact import ExactPlan, fits
from logitsieve.heads import ExactHead, Softmax
from tests.gpu.softmaxes import TYPES, on_gpu, sweep, tensor
from tests.synthetic import make_hidden, make_softmax


def assert_same(softmax: Softmax, hidden: np.ndarray, k: int, dtype: str = "float32") -> ExactPlan:
    stored, matrix = on_gpu(softmax, dtype)
    assert fits(matrix.rows, k)
    plan = ExactPlan(matrix, tensor(hidden), k)
    plan.run()
    top = ExactHead(stored).topk(hidden, k)
    np.testing.assert_array_equal(plan.output.ids.cpu().numpy(), top.ids)
    np.testing.assert_array_equal(plan.output.logits.cpu().numpy(), top.logits)
    np.testing.assert_array_equal(plan.output.scanned.cpu().numpy(), top.scanned)
    assert plan.output.exact.all()
    return plan


SHAPES = [(1, 700, 33, 1), (1, 2049, 70, 64), (2, 1000, 16, 5), (7, 999, 17, 3), (65, 333, 8, 10)]


@pytest.mark.parametrize(
    ("dtype", "rows", "vocab_size", "dim", "k"),
    sweep(
        ("float32", 1, 700, 33, 1), ("float16", 2, 500, 16, 5), ("bfloat16", 1, 1025, 70, 32),
        more=[(dtype, *shape) for dtype in TYPES for shape in SHAPES],
    ),
)  # fmt: skip
def test_answers_are_the_exact_heads(
    dtype: str, rows: int, vocab_size: int, dim: int, k: int
) -> None:
    assert_same(make_softmax(vocab_size, dim), make_hidden(rows, dim), k, dtype)


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**40])
def test_scales(scale: float) -> None:
    assert_same(make_softmax(600, 9, scale=scale), make_hidden(2, 9, scale=scale), 4)


def test_groups_of_more_than_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "GROUPS", 64)
    assert assert_same(make_softmax(1500, 14), make_hidden(2, 14), 5).group == 32


@pytest.mark.exhaustive
def test_more_groups_than_one_program_looks_through() -> None:
    weight = np.random.default_rng(1).standard_normal((300_000, 4), np.float32)
    assert_same(Softmax(weight, np.zeros(len(weight), np.float32)), make_hidden(2, 4), 5)


def test_equal_logits_come_by_the_lower_id() -> None:
    softmax = make_softmax(900, 12)
    twins = Softmax(np.repeat(softmax.weight[:300], 3, axis=0), np.zeros(900, np.float32))
    assert_same(twins, make_hidden(3, 12), 7)


def test_a_row_of_zeros_ties_everything() -> None:
    softmax = make_softmax(1500, 12)
    hidden = make_hidden(3, 12)
    hidden[1] = 0
    plan = assert_same(Softmax(softmax.weight, np.zeros(1500, np.float32)), hidden, 5)
    assert plan.output.ids[1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", sweep(np.nan, 3e38, more=[np.inf, -np.inf]))
def test_rows_that_cannot_be_answered_have_no_ids(value: float) -> None:
    softmax, hidden = make_softmax(700, 9), make_hidden(3, 9)
    _, matrix = on_gpu(softmax)
    plain = ExactPlan(matrix, tensor(hidden), 4)
    plain.run()
    hidden[1, 5] = value
    plan = ExactPlan(matrix, tensor(hidden), 4)
    plan.run()
    assert plan.output.ids[1].tolist() == [-1] * 4
    assert plan.output.exact.tolist() == [1, 0, 1]
    assert plan.output.ids[0].tolist() == plain.output.ids[0].tolist()
    assert plan.output.ids[2].tolist() == plain.output.ids[2].tolist()
