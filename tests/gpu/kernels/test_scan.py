"""A pass over W in float32: how far its logits are off, and what that may not decide."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans.exact import ExactPlan, FloatLogits
from logitsieve.heads import Softmax
from tests.gpu.plans.test_exact import assert_same
from tests.gpu.softmaxes import TYPES, on_gpu, tensor
from tests.oracle import logits64
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("dtype", TYPES)
def test_what_the_tensor_cores_drop_is_within_the_slack(dtype: str) -> None:
    rng, dim = np.random.default_rng(3), 40
    bits = rng.integers(1, 2**23, (17, dim), np.int64).astype(np.uint32) | 0x3F807FFF
    hidden = bits.view(np.float32) * rng.choice(np.array([-1, 1], np.float32), (17, dim))
    stored, matrix = on_gpu(make_softmax(600, dim), dtype)
    plan = ExactPlan(matrix, tensor(hidden), 3)
    plan._scan()
    maxima = plan.maxima.cpu().numpy()
    logits = hidden.astype(np.float64) @ stored.weight.T.astype(np.float64) + stored.bias
    true = np.maximum.reduceat(logits, np.arange(0, 600, plan.group), axis=1)
    slack = np.linalg.norm(hidden.astype(np.float64), axis=1) * float(matrix.limits[2])
    assert (np.abs(maxima - true) <= slack[:, None]).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_dropped_may_decide(dtype: str) -> None:
    """Rows that differ by the last bits of h alone: w_i h = 1 + (i mod 31) 2^-23."""
    h = np.zeros((2, 40), np.float32)
    h[:, 0] = 1
    h[:, 1:32] = 1 + np.arange(31, dtype=np.float32) * np.float32(2**-23)
    weight = np.zeros((400, 40), np.float32)
    weight[np.arange(400), 1 + np.random.default_rng(4).permutation(400) % 31] = 1
    assert_same(Softmax(weight, np.zeros(400, np.float32)), h, 5, dtype)


@pytest.mark.parametrize("rows", [1, 3, 65])
def test_every_row_of_several_blocks_has_its_logits(rows: int) -> None:
    softmax, hidden = make_softmax(333, 17), make_hidden(rows, 17)
    _, matrix = on_gpu(softmax)
    plan = FloatLogits(matrix.weight, matrix.bias, tensor(hidden))
    plan.run()
    true = logits64(softmax.weight, softmax.bias, hidden)
    np.testing.assert_allclose(plan.logits.cpu().numpy(), true, atol=1e-4)
