"""log Z on a GPU against float64, also where float32 logits mislead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.gpu.plans import exact
from logitsieve.gpu.plans.draws import DeviceEdits, DrawPlan, draw_inputs
from logitsieve.heads import ExactHead, Softmax
from logitsieve.kernels.topk.merge import TOP, VALUE
from tests.gpu.draw_plans import assert_within
from tests.gpu.softmaxes import on_gpu, sweep, tensor
from tests.kernels.sampling.test_log_z import MAKERS, Make, cancelling, gaussian
from tests.oracle import log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax

UNIT = 1.2e-7  # twice what rounding to float32 may be off by, of the value


def plan_of(
    softmax: Softmax, hidden: np.ndarray, scale: float = 1.0, edits: DeviceEdits | None = None
) -> DrawPlan:
    """A plan without draws."""
    _, matrix = on_gpu(softmax)
    inputs = draw_inputs(tensor(hidden))
    inputs.scale.fill_(scale)
    return DrawPlan(matrix, tensor(hidden), 0, inputs, edits)


def allowed(plan: DrawPlan, logits: np.ndarray, scale: float) -> np.ndarray:
    """[B] what log_z.py says that log Z may be off by."""
    limits = plan.matrix.limits.cpu().numpy()
    norms = np.linalg.norm(plan.hidden.cpu().numpy().astype(float), axis=1)
    slack, log_z = norms * limits[2] + limits[3], np.logaddexp.reduce(logits * scale, axis=1)
    weights = np.exp(logits * scale - log_z[:, None])
    # What a group's maximum says of all its ids: none of an unlisted group reaches the cut.
    cuts = plan.cuts[:, 0].cpu().numpy().astype(float) + slack
    light = np.where(logits <= cuts[:, None], weights, 0.0).sum(axis=1)
    light[plan.overfull[:, 0].cpu().numpy() > 0] = 0.0
    off = light * np.expm1(np.minimum(scale * slack, 700.0)) + UNIT * np.abs(log_z) + 2e-7
    return np.asarray(off)


def log_z_of(softmax: Softmax, hidden: np.ndarray, scale: float) -> np.ndarray:
    """[B] of the exact head on the host."""
    fields = ExactHead(softmax).log_z(hidden, scale)
    return np.asarray(scale * fields[:, TOP] + fields[:, VALUE])


def assert_near(plan: DrawPlan, truth: np.ndarray) -> None:
    """The estimate, and the interval."""
    np.testing.assert_allclose(plan.log_z[:, 0].cpu().numpy(), truth, rtol=4e-7)
    assert_within(plan.log_z.cpu().numpy(), truth)


SHAPES = ((1, 1, 1.0), (257, 40, 3.0), (1700, 21, 0.5))


@pytest.mark.parametrize(
    ("make", "V", "D", "scale"),
    sweep(
        (gaussian, 1, 1, 1.0),
        (cancelling, 600, 21, 0.5),
        *((make, 257, 40, 3.0) for make in MAKERS),
        more=[(make, *shape) for make in MAKERS for shape in SHAPES if shape[0] != 257],
    ),
)
def test_it_is_that_of_float64(make: Make, V: int, D: int, scale: float) -> None:
    random = np.random.default_rng(V)
    weight, bias, hidden = (part.astype(np.float32) for part in make(random, V, D))
    hidden = hidden[:3].copy()
    softmax = Softmax(weight, bias)
    plan = plan_of(softmax, hidden, scale)
    plan.run()
    logits, found = logits64(weight, bias, hidden), plan.log_z.cpu().numpy()
    truth = log_z_of(softmax, hidden, scale)
    off = np.abs(found[:, 0] - np.logaddexp.reduce(logits * scale, axis=1))
    assert (off <= allowed(plan, logits, scale)).all()
    np.testing.assert_allclose(found[:, 0], truth, rtol=4e-7, atol=6e-7)
    assert_within(found, truth)


@pytest.mark.parametrize(
    ("dtype", "rows"),
    sweep(("float16", 2), ("bfloat16", 1), more=[("float32", 1), ("float32", 2), ("float32", 17)]),
)
def test_types_and_rows(dtype: str, rows: int) -> None:
    softmax, hidden = make_softmax(1100, 13), make_hidden(rows, 13)
    stored, matrix = on_gpu(softmax, dtype)
    plan = DrawPlan(matrix, tensor(hidden), 0, draw_inputs(tensor(hidden)))
    plan.run()
    assert_near(plan, log_z_of(stored, hidden, 1.0))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_maxima_may_be_off_by_all_that_is_allowed(sign: float) -> None:
    """Listed ids do not come from float32: only the share of the others is off."""
    softmax, hidden = make_softmax(2100, 40, scale=0.3), make_hidden(3, 40)
    plan = plan_of(softmax, hidden)
    plan._scan()
    limits, norms = plan.matrix.limits.cpu().numpy(), np.linalg.norm(hidden.astype(float), axis=1)
    slack = torch.from_numpy((norms * limits[2] + limits[3]).astype(np.float32))
    plan.maxima += sign * slack.to(plan.maxima.device)[:, None, None]
    plan._sum()
    logits = logits64(softmax.weight, softmax.bias, hidden)
    truth = np.logaddexp.reduce(logits, axis=1)
    assert_within(plan.log_z.cpu().numpy(), truth)
    off = np.abs(plan.log_z[:, 0].cpu().numpy() - truth)
    assert (off <= allowed(plan, logits, 1.0)).all()
    assert off.max() > 5e-7  # or nothing was left to float32 here


def test_edits_are_weighed_instead() -> None:
    softmax, hidden = make_softmax(2100, 13), make_hidden(3, 13)
    logits = logits64(softmax.weight, softmax.bias, hidden)
    banned = np.sort(np.argsort(-logits[0])[:50]).astype(np.int32)
    ids = np.concatenate([banned, np.arange(5, 1000, dtype=np.int32)])
    values = np.concatenate([np.full(50, -np.inf), np.full(995, -1.25)])
    edits = DeviceEdits(tensor(np.array([0, 50, 50, 1045])), tensor(ids), tensor(values))
    plan = plan_of(softmax, hidden, 1.0, edits)
    plan.run()
    logits[0, banned], logits[2, 5:1000] = -np.inf, -1.25
    assert_near(plan, np.array([log_sum_exp(row) for row in logits]))


def test_groups_of_more_than_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "GROUPS", 64)
    softmax, hidden = make_softmax(1500, 14), make_hidden(2, 14)
    plan = plan_of(softmax, hidden)
    plan.run()
    assert plan.group == 32
    assert_near(plan, log_z_of(softmax, hidden, 1.0))


@pytest.mark.exhaustive
def test_more_groups_than_one_program_looks_through() -> None:
    weight = np.random.default_rng(1).standard_normal((263_000, 4), np.float32)
    softmax, hidden = Softmax(weight, np.zeros(len(weight), np.float32)), make_hidden(2, 4)
    plan = plan_of(softmax, hidden)
    plan.run()
    assert plan.group == 32
    assert_near(plan, log_z_of(softmax, hidden, 1.0))


def test_rows_that_cannot_be_answered_have_none() -> None:
    hidden = make_hidden(3, 9)
    hidden[1, 2] = np.nan
    plan = plan_of(make_softmax(200, 9), hidden)
    plan.run()
    assert np.isnan(plan.log_z.cpu().numpy()).tolist() == [[False] * 3, [True] * 3, [False] * 3]
