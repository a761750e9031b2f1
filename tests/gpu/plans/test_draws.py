"""Draws on a GPU are the exact head's, id by id, and so is log Z."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans import exact
from logitsieve.gpu.plans.draws import DrawPlan
from logitsieve.heads import ExactHead, Softmax
from logitsieve.heads._base.draw_options import DrawOptions
from tests.gpu.draw_plans import (
    STEP,
    Edited,
    assert_within,
    draw_plan,
    edited_far,
    edited_rows,
    exact_draws,
)
from tests.gpu.softmaxes import TYPES, sweep, tensor
from tests.synthetic import make_hidden, make_softmax


def assert_same(
    softmax: Softmax,
    hidden: np.ndarray,
    draws: int,
    temperature: float,
    edited: Edited | None = None,
    dtype: str = "float32",
    step: int = STEP,
) -> DrawPlan:
    plan, stored = draw_plan(softmax, hidden, draws, 1 / temperature, edited, dtype, step)
    plan.run()
    ids, log_z = exact_draws(stored, hidden, draws, 1 / temperature, edited, step)
    np.testing.assert_array_equal(plan.ids.cpu().numpy(), ids)
    np.testing.assert_allclose(plan.log_z[:, 0].cpu().numpy(), log_z, rtol=3e-7, atol=1e-6)
    assert_within(plan.log_z.cpu().numpy(), log_z)
    return plan


@pytest.mark.parametrize("temperature", sweep(1e-5, 1.0, 1e4, more=[1e-2, 0.3]))
def test_draws_are_the_exact_heads_at_every_temperature(temperature: float) -> None:
    assert_same(make_softmax(233, 17), make_hidden(3, 17), 7, temperature)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types(dtype: str) -> None:
    assert_same(make_softmax(233, 17), make_hidden(3, 17), 4, 0.7, dtype=dtype)


@pytest.mark.parametrize(
    ("rows", "vocab_size", "dim", "draws"),
    sweep(
        (1, 1, 1, 2),
        (1, 999, 33, 3),
        (17, 33, 5, 1),
        more=[(1, 2, 3, 2), (1, 1999, 33, 3), (2, 17, 70, 9), (9, 130, 8, 4)],
    ),
)
def test_shapes(rows: int, vocab_size: int, dim: int, draws: int) -> None:
    assert_same(make_softmax(vocab_size, dim), make_hidden(rows, dim), draws, 0.7)


@pytest.mark.parametrize("step", [0, (1 << 40) + 3])
def test_steps_and_what_is_written_between_runs(step: int) -> None:
    softmax = make_softmax(200, 9)
    plan = assert_same(softmax, make_hidden(2, 9), 4, 0.7, step=step)
    hidden, seeds = make_hidden(2, 9, seed=5), np.array([1 << 63, 12], np.uint64)
    plan.hidden.copy_(tensor(hidden))
    plan.inputs.seeds.copy_(tensor(seeds.view(np.int64)))
    plan.inputs.step[0].fill_(step + 1)
    plan.inputs.scale.fill_(2.0)
    plan.run()
    ids, _, _ = ExactHead(softmax).draw(hidden, DrawOptions(4, seeds, step + 1, 2.0))
    np.testing.assert_array_equal(plan.ids.cpu().numpy(), ids)


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**40])
def test_scales_of_logits(scale: float) -> None:
    assert_same(make_softmax(300, 9, scale=scale), make_hidden(2, 9, scale=scale), 4, 1.0)


@pytest.mark.parametrize("temperature", sweep(1.0, more=[1e-5, 1e4]))
def test_biases_far_above_the_logits(temperature: float) -> None:
    softmax = make_softmax(400, 9)
    bias = np.random.default_rng(0).choice(np.array([-1e4, 1e4], np.float32), 400)
    assert_same(Softmax(softmax.weight, bias), make_hidden(2, 9), 4, temperature)


@pytest.mark.parametrize("temperature", sweep(1.0, more=[1e-5, 1e4]))
def test_equal_logits_are_too_many_to_list(temperature: float) -> None:
    softmax, hidden = make_softmax(1100, 12), make_hidden(2, 12)
    hidden[1] = 0
    flat = Softmax(softmax.weight, np.zeros(1100, np.float32))
    plan = assert_same(flat, hidden, 3, temperature)
    assert plan.overfull[:, 0].tolist() == [0, 1]
    assert plan.log_z[1].tolist() == pytest.approx([np.log(1100)] * 3, abs=1e-11)


def test_logits_too_near_each_other_for_float32_where_it_is_cold() -> None:
    random = np.random.default_rng(4)
    weight = np.ones((1100, 40)) + 1e-6 * random.standard_normal((1100, 40))
    softmax = Softmax(weight.astype(np.float32), np.zeros(1100, np.float32))
    edited: Edited = [([3], [-np.inf]), ([], [])]
    plan = assert_same(softmax, 1 + 0.1 * make_hidden(2, 40), 2, 1e-5, edited)
    assert plan.overfull.all()


@pytest.mark.parametrize("temperature", sweep(1.0, more=[1e-5, 1e4]))
def test_edits(temperature: float) -> None:
    softmax, hidden = make_softmax(333, 17), make_hidden(6, 17)
    assert_same(softmax, hidden, 3, temperature, edited_rows(softmax, hidden))


def test_groups_of_more_than_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "GROUPS", 16)
    softmax, hidden = make_softmax(333, 17), make_hidden(6, 17)
    plan = assert_same(softmax, hidden, 3, 1.0, edited_rows(softmax, hidden))
    assert plan.group == 32


@pytest.mark.parametrize("value", sweep(3.4e38, more=[-3.4e38, 1e10]))
def test_edits_far_beyond_any_logit(value: float) -> None:
    assert_same(make_softmax(70, 5), make_hidden(4, 5), 3, 1.0, edited_far(value))


def test_edits_of_rows_with_overfull_slots() -> None:
    softmax, hidden = make_softmax(1500, 12), np.zeros((2, 12), np.float32)
    flat = Softmax(softmax.weight, np.zeros(1500, np.float32))
    edited: Edited = [(list(range(200)), [-np.inf] * 200), ([5, 1499], [-np.inf, 2.0])]
    plan = assert_same(flat, hidden, 1, 1.0, edited)
    assert plan.overfull[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("value", sweep(np.nan, 3e38, more=[np.inf, -np.inf]))
def test_rows_that_cannot_be_answered_have_no_ids(value: float) -> None:
    softmax, hidden = make_softmax(200, 9), make_hidden(3, 9)
    plain, _ = draw_plan(softmax, hidden, 4, 1.0)
    plain.run()
    hidden[1, 5] = value
    plan, _ = draw_plan(softmax, hidden, 4, 1.0)
    plan.run()
    assert plan.ids[1].tolist() == [-1] * 4
    assert np.isnan(plan.log_z.cpu().numpy()).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert plan.ids[::2].tolist() == plain.ids[::2].tolist()
    assert plan.log_z[::2].tolist() == plain.log_z[::2].tolist()
