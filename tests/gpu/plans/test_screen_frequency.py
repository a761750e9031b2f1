"""The static list: a screen of one cluster answers as the frequency head does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans.screen import RoutedPlan, frequency_on
from logitsieve.heads import ExactHead, FrequencyHead, Softmax
from tests.gpu.answers import assert_answers, assert_refused, exact_behind
from tests.gpu.softmaxes import on_gpu, sweep, tensor
from tests.synthetic import frequency_arrays, make_hidden, make_softmax


def assert_same(
    softmax: Softmax, hidden: np.ndarray, k: int, n: int, dtype: str = "float32"
) -> RoutedPlan:
    stored, matrix = on_gpu(softmax, dtype)
    arrays = frequency_arrays(softmax)
    screen = frequency_on(matrix.weight.device, arrays["ids"], n, matrix.dim)
    plan = RoutedPlan(matrix, screen, tensor(hidden), k, exact_behind(matrix))
    plan.run()
    head = FrequencyHead.from_arrays(
        stored, arrays, fallback=ExactHead(stored), threads=1, knobs={"n": n}
    )
    good = np.isfinite(hidden).all(axis=1)
    assert_answers(plan.output, head.topk(hidden[good], k), good)
    return plan


@pytest.mark.parametrize(
    ("dtype", "rows", "vocab_size", "dim", "k", "n"),
    sweep(
        ("float32", 1, 301, 24, 5, 70),
        ("float32", 2, 163, 33, 5, 163),
        ("float16", 17, 299, 40, 1, 33),
        ("bfloat16", 3, 2100, 7, 64, 64),
        ("bfloat16", 5, 2100, 7, 64, 63),
        more=[("float32", 17, 299, 9, 5, 61)],
    ),
)
def test_answers_are_the_heads(
    dtype: str, rows: int, vocab_size: int, dim: int, k: int, n: int
) -> None:
    assert_same(make_softmax(vocab_size, dim), make_hidden(rows, dim), k, n, dtype)


def test_rows_of_zeros_and_rows_that_cannot_be_answered() -> None:
    softmax, hidden = make_softmax(), make_hidden(6)
    hidden[1], hidden[2, 3] = 0, np.nan
    plan = assert_same(Softmax(softmax.weight, np.zeros(300, np.float32)), hidden, 4, 50)
    assert_refused(plan.output, 2)
