"""certified's draws on a GPU are the exact head's, id by id, and log Z is within its interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.heads import CertifiedHead, Softmax
from logitsieve.index_builder.fit.certified import Widths
from tests.gpu.draw_plans import (
    Edited,
    assert_within,
    certified_draw_plan,
    edited_far,
    edited_rows,
    exact_draws,
    passed_on,
    twins_within_twice_the_slack,
)
from tests.gpu.kernels.test_bounds import with_codes
from tests.gpu.softmaxes import TYPES, sweep, tensor
from tests.heads.test_certified import BIASES, MATRICES, attacks, certified, decaying
from tests.synthetic import make_hidden, make_softmax


def assert_same(
    softmax: Softmax,
    hidden: np.ndarray,
    draws: int,
    scale: float,
    edited: Edited | None = None,
    dtype: str = "float32",
    head: CertifiedHead | None = None,
) -> CertifiedDrawPlan:
    plan, stored = certified_draw_plan(softmax, hidden, draws, scale, edited, dtype, head)
    plan.run()
    assert_drawn(plan, stored, hidden, draws, scale, edited)
    return plan


def assert_drawn(
    plan: CertifiedDrawPlan,
    stored: Softmax,
    hidden: np.ndarray,
    draws: int,
    scale: float,
    edited: Edited | None = None,
) -> None:
    ids, log_z = exact_draws(stored, hidden, draws, scale, edited)
    np.testing.assert_array_equal(plan.ids.cpu().numpy(), ids)
    assert_within(plan.log_z.cpu().numpy(), log_z)


@pytest.mark.parametrize("scale", sweep(1e-4, 1.0, 1e5, more=[0.3, 3.0]))
def test_draws_are_the_exact_heads_at_every_scale(scale: float) -> None:
    plan = assert_same(make_softmax(233, 17), make_hidden(3, 17), 9, scale)
    assert passed_on(plan) == [False] * 3


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types(dtype: str) -> None:
    assert_same(make_softmax(233, 17), make_hidden(3, 17), 4, 1.4, dtype=dtype)


@pytest.mark.parametrize(
    ("rows", "vocab_size", "dim", "draws"),
    sweep(
        (1, 1, 1, 2),
        (1, 2, 3, 0),
        (1, 999, 33, 3),
        more=[(1, 1999, 33, 3), (2, 17, 70, 9), (9, 130, 8, 0), (17, 33, 5, 1)],
    ),
)
def test_shapes(rows: int, vocab_size: int, dim: int, draws: int) -> None:
    assert_same(make_softmax(vocab_size, dim), make_hidden(rows, dim), draws, 1.4)


def test_what_is_written_between_runs() -> None:
    softmax, first, second = make_softmax(400, 9), make_hidden(2, 9), make_hidden(2, 9, seed=5)
    first[1] = np.nan
    plan, stored = certified_draw_plan(softmax, first, 4, 1.0)
    plan.run()
    plan.hidden.copy_(tensor(second))
    plan.inputs.scale.fill_(2.0)
    plan.run()
    assert_drawn(plan, stored, second, 4, 2.0)


def test_few_rows_are_computed_where_the_spectrum_decays() -> None:
    softmax, hidden = decaying(4000, 96)
    plan = assert_same(softmax, hidden[:4], 3, 1.0)
    assert passed_on(plan) == [False] * 4
    assert plan.scanned.max() < 600  # of three draws and log Z


@pytest.mark.parametrize("rows", sweep(1, more=[3]))
def test_a_sketch_of_few_coordinates_of_many(rows: int) -> None:
    random = np.random.default_rng(4)
    head = with_codes(0.1 * random.standard_normal((150, 300)), np.eye(300), Widths(16, 64))
    assert_same(head._softmax, make_hidden(rows, 300), 1, 1.0, head=head)


def test_groups_of_more_than_sixteen() -> None:
    softmax, hidden = make_softmax(1500, 14), make_hidden(2, 14)
    plan, stored = certified_draw_plan(softmax, hidden, 2, 1.0)
    plan.group, plan.groups = 32, 47  # as they are where V is above 2^18
    plan.maxima, plan.sums = torch.empty((2, 2, 3, 47), device=plan.hidden.device)
    plan.leaders = torch.empty((2, 2, 47), device=plan.hidden.device)
    plan.run()
    assert_drawn(plan, stored, hidden, 2, 1.0)
    assert passed_on(plan) == [False] * 2


@pytest.mark.parametrize("scale", sweep(1.0, more=[1e-4, 1e5]))
def test_near_ties(scale: float) -> None:
    assert_same(twins_within_twice_the_slack(), make_hidden(4, 17), 2, scale)


@pytest.mark.parametrize("scale", sweep(1.0, more=[0.3, 1e5]))
def test_equal_logits_are_too_many_to_list(scale: float) -> None:
    softmax, hidden = make_softmax(1100, 12), make_hidden(3, 12)
    hidden[1] = 0
    flat = Softmax(softmax.weight, np.zeros(1100, np.float32))
    plan = assert_same(flat, hidden, 3, scale)
    assert passed_on(plan) == [False, True, False]
    assert plan.scanned.tolist()[1] == 1100
    assert plan.fallback.overfull[:, 0].tolist() == [0, 1, 0]


def test_bounds_that_say_little_leave_it_to_float32() -> None:
    random = np.random.default_rng(6)
    head = with_codes(2 * random.standard_normal((1500, 100)), np.eye(100), Widths(16, 64))
    edited: Edited = [([], []), ([7], [-np.inf])]
    plan = assert_same(head._softmax, make_hidden(2, 100), 1, 1.0, edited, head=head)
    assert passed_on(plan) == [True, True]
    assert plan.fallback.overfull.sum() == 0


@pytest.mark.parametrize("scale", sweep(1.0, more=[1e-4, 1e5]))
def test_edits(scale: float) -> None:
    softmax, hidden = make_softmax(333, 17), make_hidden(6, 17)
    assert_same(softmax, hidden, 2, scale, edited_rows(softmax, hidden))


@pytest.mark.parametrize("value", sweep(3.4e38, more=[-3.4e38, -123456.789]))
def test_edits_far_beyond_any_logit(value: float) -> None:
    assert_same(make_softmax(70, 5), make_hidden(4, 5), 1, 1.0, edited_far(value))


@pytest.mark.parametrize("value", sweep(np.nan, more=[3e38]))
def test_rows_that_cannot_be_answered_have_no_ids(value: float) -> None:
    softmax, hidden = make_softmax(200, 9), make_hidden(3, 9)
    head = certified(softmax)
    plain, _ = certified_draw_plan(softmax, hidden, 4, 1.0, head=head)
    plain.run()
    hidden[1, 5] = value
    plan, _ = certified_draw_plan(softmax, hidden, 4, 1.0, head=head)
    plan.run()
    assert plan.ids[1].tolist() == [-1] * 4
    assert plan.log_z[1].isnan().all()
    assert plan.scanned.tolist()[1] == 0
    for mine, theirs in zip(plan.output, plain.output, strict=True):
        assert mine[::2].tolist() == theirs[::2].tolist()


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(
    ("vocab_size", "dim", "exponent", "bias", "scale"),
    [
        (129, 47, 0, "small", 1.0),
        (100, 66, 0, "+-1e4", 3.0),
        (99, 60, 22, "one huge", 1.0),
    ],
)
def test_no_attack_draws_another_id_or_leaves_the_interval(
    matrix: str, vocab_size: int, dim: int, exponent: int, bias: str, scale: float
) -> None:
    random = np.random.default_rng(vocab_size)
    weight = MATRICES[matrix](random, vocab_size, dim).astype(np.float32)
    softmax = Softmax(weight, BIASES[bias](random, vocab_size).astype(np.float32))
    head = certified(softmax)
    hidden = (attacks(softmax, head, random) * 10.0**exponent).astype(np.float32)
    largest = np.linalg.norm(weight.astype(np.float64), axis=1).max()
    norms = np.linalg.norm(hidden.astype(np.float64), axis=1)
    hidden = hidden[(norms * largest < 5e37) & np.isfinite(hidden).all(axis=1)][::2].copy()
    assert_same(softmax, hidden, 1, scale, head=head)


def test_one_id_with_nearly_all_the_weight_leaves_log_z_no_room() -> None:
    softmax, hidden = make_softmax(400, 17), make_hidden(3, 17)
    softmax.bias[77] = 60.0
    plan = assert_same(softmax, hidden, 1, 1.0)
    _, low, high = plan.log_z.cpu().numpy().T
    assert (high - low < 1e-9).all()
