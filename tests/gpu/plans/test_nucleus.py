"""Draws of what top-p and min-p leave are those of the definition, and so are logits and log Z."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from logitsieve.gpu.plans import nucleus
from logitsieve.gpu.plans.draws import DrawInputs
from logitsieve.gpu.plans.nucleus import NucleusPlan
from logitsieve.heads import Softmax
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP
from tests.gpu.draw_plans import Edited, edits_of, seeds_of
from tests.gpu.softmaxes import TYPES, on_gpu, sweep, tensor
from tests.oracle import drawn, filtered, log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax

STEP, FIRST = (1 << 40) + 3, 5
DRAWS = 4


def plan_of(
    softmax: Softmax, hidden: np.ndarray, temperature: float, top_p: float, min_p: float,
    dtype: str = "float32", edited: Edited | None = None,
) -> tuple[NucleusPlan, Softmax]:  # fmt: skip
    """A plan that has run, whose draws are FIRST to FIRST + DRAWS - 1, and the stored softmax."""
    stored, matrix = on_gpu(softmax, dtype)
    seeds = tensor(seeds_of(len(hidden)).view(np.int64))
    steps = tensor(np.array([STEP, FIRST]))
    inputs = DrawInputs(tensor(np.array([1 / temperature])), seeds, steps)
    whole, edits = top_p == 1.0, edits_of(edited)
    plan = NucleusPlan(matrix, tensor(hidden), DRAWS, inputs, edits, whole=whole)
    plan.filters.copy_(tensor(np.array([top_p, min_p])))
    plan.run()
    return plan, stored


def assert_row(
    plan: NucleusPlan, row: int, logits: np.ndarray, left: list[int], temperature: float
) -> None:
    """Ids, their logits and log Z of a row of logits [V] of which those are left."""
    seed = int(seeds_of(len(plan.hidden))[row])
    expected = drawn(logits, FIRST + DRAWS, seed, STEP, temperature, left)[FIRST:]
    assert plan.ids[row].tolist() == expected
    np.testing.assert_array_equal(plan.chosen[row].cpu().numpy(), logits[expected])
    log_z, fields = log_sum_exp(logits[left] / temperature), plan.log_z[row].cpu().numpy()
    assert fields[TOP] == logits.max()
    low, high = fields[[LOW, HIGH]] + logits.max() / temperature
    off = 1e-13 * (1 + abs(log_z))
    assert low - off <= log_z <= high + off
    assert high - low < 1e-9 * (1 + abs(log_z))


def assert_drawn(
    softmax: Softmax, hidden: np.ndarray, temperature: float, top_p: float, min_p: float,
    dtype: str = "float32",
) -> list[int]:  # fmt: skip
    """How many ids are left of each row."""
    plan, stored = plan_of(softmax, hidden, temperature, top_p, min_p, dtype)
    lengths = []
    for row, logits in enumerate(logits64(stored.weight, stored.bias, hidden)):
        left = filtered(logits, temperature, 0, top_p, min_p)
        assert_row(plan, row, logits, left, temperature)
        lengths.append(len(left))
    return lengths


FILTERS = [(0.9, 0.0), (0.3, 0.0), (0.95, 0.05), (1.0, 0.02), (1 - 1e-9, 0.0), (1e-9, 0.0)]


@pytest.mark.parametrize(("top_p", "min_p"), sweep(*FILTERS, more=[(0.5, 1.0), (1.0, 1.0)]))
@pytest.mark.parametrize("temperature", sweep(1.0, more=[1e-5, 0.3, 3.0, 1e4]))
def test_filters(temperature: float, top_p: float, min_p: float) -> None:
    assert_drawn(make_softmax(300, 12), make_hidden(3, 12, scale=0.5), temperature, top_p, min_p)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types(dtype: str) -> None:
    assert_drawn(make_softmax(150, 7), make_hidden(2, 7), 0.8, 0.9, 0.01, dtype)


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 65])
def test_small_vocabularies(vocab_size: int) -> None:
    assert_drawn(make_softmax(vocab_size, 3), make_hidden(2, 3), 1.0, 0.7, 0.0)


def test_many_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nucleus, "SMALLEST", 32)
    softmax, hidden = make_softmax(500, 6), make_hidden(2, 6, scale=0.2)
    assert max(assert_drawn(softmax, hidden, 1.0, 0.9, 0.0)) > 250


def test_equal_logits_are_left_by_the_lower_id() -> None:
    """Of the rows of W each is there seven times."""
    softmax, places = make_softmax(40, 8), np.arange(280) % 40
    tied = Softmax(softmax.weight[places].copy(), softmax.bias[places].copy())
    for top_p in (0.2, 0.55, 0.9):
        assert_drawn(tied, make_hidden(2, 8, scale=0.3), 1.0, top_p, 0.0)


@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.7, 1.0])
def test_rows_of_zeros(top_p: float) -> None:
    softmax = make_softmax(260, 5)
    softmax.bias[:] = 0.0
    plan, _ = plan_of(softmax, np.zeros((2, 5), np.float32), 1.0, top_p, 0.5)
    for row in range(2):
        assert_row(plan, row, np.zeros(260), list(range(ceil(260 * top_p))), 1.0)


def test_logits_of_both_signs_and_zeros_of_both() -> None:
    weight = np.array([[0.0], [-0.0], [1.0], [-1.0], [1e-30], [-1e-30], [0.0]], np.float32)
    softmax, hidden = Softmax(weight, np.zeros(7, np.float32)), np.array([[2.0], [-2.0]])
    for top_p in (0.4, 0.6, 0.75, 0.97):
        assert_drawn(softmax, hidden.astype(np.float32), 1.0, top_p, 0.0)


@pytest.mark.parametrize(("top_p", "min_p"), [(0.6, 0.0), (1.0, 0.1)])
def test_edits(top_p: float, min_p: float) -> None:
    softmax, hidden = make_softmax(200, 9), make_hidden(2, 9)
    logits = logits64(softmax.weight, softmax.bias, hidden)
    best = int(logits[0].argmax())
    edited = [([best], [-np.inf]), ([3, 5, 190], [3e38, 3e38, 2.0])]
    plan, _ = plan_of(softmax, hidden, 1.0, top_p, min_p, edited=edited)
    for row, (ids, values) in enumerate(edited):
        logits[row, ids] = values
        assert_row(plan, row, logits[row], filtered(logits[row], 1.0, 0, top_p, min_p), 1.0)


def test_what_is_written_between_runs_is_read() -> None:
    softmax, hidden = make_softmax(200, 9), make_hidden(2, 9)
    plan, _ = plan_of(softmax, hidden, 0.7, 0.2, 0.0)
    other, seeds = make_hidden(2, 9, seed=5), seeds_of(2)
    plan.hidden.copy_(tensor(other))
    plan.filters.copy_(tensor(np.array([0.8, 0.01])))
    plan.inputs.scale.fill_(1.0)
    plan.run()
    for row, logits in enumerate(logits64(softmax.weight, softmax.bias, other)):
        assert_row(plan, row, logits, filtered(logits, 1.0, 0, 0.8, 0.01), 1.0)
    plan.inputs.seeds.copy_(tensor(seeds[::-1].copy().view(np.int64)))
    plan.run()
    logits = logits64(softmax.weight, softmax.bias, other)[0]
    left = filtered(logits, 1.0, 0, 0.8, 0.01)
    turned = drawn(logits, FIRST + DRAWS, int(seeds[1]), STEP, 1.0, left)[FIRST:]
    assert plan.ids[0].tolist() == turned


def test_rows_that_cannot_be_answered_have_nothing() -> None:
    softmax, hidden = make_softmax(200, 9), make_hidden(3, 9)
    hidden[1, 2] = np.nan
    plan, _ = plan_of(softmax, hidden, 1.0, 0.5, 0.0)
    assert (plan.ids[1] == -1).all()
    assert plan.chosen[1].isnan().all()
    assert plan.log_z[1].isnan().all()
    for row in (0, 2):
        logits = logits64(softmax.weight, softmax.bias, hidden[row : row + 1])[0]
        assert_row(plan, row, logits, filtered(logits, 1.0, 0, 0.5, 0.0), 1.0)
