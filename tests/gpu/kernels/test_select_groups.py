"""Groups are selected as if all that precedes were as wrong as it may be: winners stay listed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.gpu.kernels.encode_query import MARGIN
from logitsieve.gpu.kernels.gumbel import NOISE_ERROR
from tests.gpu.draw_plans import (
    certified_draw_plan,
    draw_plan,
    exact_draws,
    passed_on,
    twins_within_twice_the_slack,
)
from tests.gpu.softmaxes import sweep
from tests.oracle import logits64
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("temperature", [1e-5, 1.0])
def test_maxima_may_be_off_by_all_that_is_allowed(temperature: float) -> None:
    """A GPU's products are worse than the interpreter's: winners lowered, all others raised."""
    softmax, hidden = twins_within_twice_the_slack(), make_hidden(8, 17)
    plan, stored = draw_plan(softmax, hidden, 2, 1 / temperature)
    ids, _ = exact_draws(stored, hidden, 2, 1 / temperature)
    plan._scan()
    limits, norms = plan.matrix.limits.cpu().numpy(), np.linalg.norm(hidden.astype(float), axis=1)
    slack = (norms * limits[2] + limits[3])[:, None]
    noisy = slack * min(1.0, 1 / temperature) + NOISE_ERROR.value * min(1.0, temperature)
    errors = np.concatenate([slack, noisy, noisy], axis=1)[:, :, None]
    off = np.repeat(errors, plan.groups, axis=2)
    plain = np.argmax(plan.maxima[:, :1].cpu().numpy(), axis=-1)
    winners = np.concatenate([plain, ids // plan.group], axis=1)
    np.put_along_axis(off, winners[:, :, None], -errors, axis=2)
    # A draw's ids are looked for by the largest logit of their group, too.
    np.put_along_axis(off[:, 0], winners, -slack, axis=1)
    raised = torch.from_numpy(off.astype(np.float32)).to(plan.maxima.device)
    plan.maxima += raised
    plan.leaders += raised[:, 1:]
    plan._sum()
    plan._choose()
    np.testing.assert_array_equal(plan.ids.cpu().numpy(), ids)


@pytest.mark.parametrize("scale", sweep(1.0, more=[1e-4, 1e5]))
def test_bounds_may_be_as_low_as_is_allowed(scale: float) -> None:
    """Maxima that are below the logits by MARGIN and what noise may be off; a loser's above all."""
    softmax, hidden, draws = twins_within_twice_the_slack(), make_hidden(4, 17), 2
    plan, stored = certified_draw_plan(softmax, hidden, draws, scale)
    plan.coded.run()
    plan._bound()
    exact, _ = draw_plan(softmax, hidden, draws, scale)
    exact._scan()
    margin = plan.coded.factors[:, int(MARGIN), None] * min(1.0, scale)
    off = torch.cat([margin, *[margin + NOISE_ERROR.value * min(1.0, 1 / scale)] * draws], dim=1)
    plan.maxima.copy_(exact.maxima - off[:, :, None])
    misleading = exact.maxima.topk(2).indices[:, :, 1:]
    plan.maxima.scatter_(2, misleading, plan.maxima.amax(2, keepdim=True) + 10)
    plan.leaders.copy_(exact.leaders - off[:, 1:, None])
    plan.leaders.scatter_(2, misleading[:, 1:], plan.leaders.amax(2, keepdim=True) + 10)
    plan._select()
    plan._choose()
    assert passed_on(plan) == [False] * 4
    ids, _ = exact_draws(stored, hidden, draws, scale)
    np.testing.assert_array_equal(plan.ids.cpu().numpy(), ids)
    best = logits64(stored.weight, stored.bias, hidden).argmax(axis=1)
    for row, size in enumerate(plan.sizes[:, 0].tolist()):
        assert best[row] in plan.chosen[row, 0, :size].tolist()


@pytest.mark.parametrize("scale", sweep(1.0, 1e3, more=[0.1, 5.0]))
def test_few_ids_are_computed_for_a_draw(scale: float) -> None:
    softmax, hidden = make_softmax(4000, 9, scale=2.0), make_hidden(3, 9)
    plan, stored = draw_plan(softmax, hidden, 8, scale)
    plan.run()
    ids, _ = exact_draws(stored, hidden, 8, scale)
    np.testing.assert_array_equal(plan.ids.cpu().numpy(), ids)
    assert plan.overfull[:, 1:].sum() == 0
    assert 1 <= plan.sizes[:, 1:].float().mean() < 64
