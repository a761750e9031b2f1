"""log Z in float64 on a GPU: its value and interval against long doubles, for every kind of W."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans import draws
from logitsieve.gpu.plans.draws import LogZPlan
from logitsieve.heads import Softmax
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE
from tests.gpu.draw_plans import Edited, edits_of, inputs_of
from tests.gpu.softmaxes import TYPES, on_gpu, sweep, tensor
from tests.kernels.sampling.test_log_z import MAKERS, Make, gaussian, peaked, true_rest
from tests.oracle import logits64
from tests.synthetic import make_hidden, make_softmax


def log_z_of(
    softmax: Softmax,
    hidden: np.ndarray,
    scale: float,
    edited: Edited | None = None,
    dtype: str = "float32",
) -> tuple[np.ndarray, Softmax]:
    """[B, 4] by a plan, and the softmax as it is stored."""
    stored, matrix = on_gpu(softmax, dtype)
    inputs = inputs_of(len(hidden), scale, 0)
    plan = LogZPlan(matrix, tensor(hidden), inputs, edits_of(edited))
    plan.run()
    return plan.log_z.cpu().numpy(), stored


def assert_right(found: np.ndarray, logits: np.ndarray, scale: float) -> None:
    """The largest logits, and intervals that hold the true rest."""
    wanted = true_rest(logits, scale)
    np.testing.assert_array_equal(found[:, TOP], logits.max(axis=1))
    assert ((found[:, LOW] <= wanted) & (wanted <= found[:, HIGH])).all()
    np.testing.assert_allclose(found[:, VALUE], wanted.astype(np.float64), rtol=1e-13)
    width = found[:, HIGH] - found[:, LOW]
    assert (width <= 3e-12 * found[:, VALUE] + 1e-280).all()
    assert ((width > 0) | (found[:, VALUE] == 0)).all()


SHAPES = [(1, 1, 1.0), (15, 3, 0.5), (257, 40, 3.0)]


@pytest.mark.parametrize(("V", "D", "scale"), SHAPES)
@pytest.mark.parametrize("make", MAKERS)
def test_it_is_that_of_long_doubles(make: Make, V: int, D: int, scale: float) -> None:
    parts = make(np.random.default_rng(V), V, D)
    weight, bias, hidden = (part.astype(np.float32) for part in parts)
    hidden = hidden[:3].copy()
    found, _ = log_z_of(Softmax(weight, bias), hidden, scale)
    assert_right(found, logits64(weight, bias, hidden), scale)


@pytest.mark.parametrize("make", sweep(peaked, more=[gaussian]))
def test_shares_of_several_blocks(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "MOST_SHARES", 5)
    parts = make(np.random.default_rng(1), 1000, 12)
    weight, bias, hidden = (part.astype(np.float32) for part in parts)
    found, _ = log_z_of(Softmax(weight, bias), hidden[:2].copy(), 1.0)
    assert_right(found, logits64(weight, bias, hidden[:2]), 1.0)


def test_equal_logits_but_one_count() -> None:
    softmax = Softmax(np.zeros((200, 3), np.float32), np.zeros(200, np.float32))
    found, _ = log_z_of(softmax, make_hidden(1, 3), 1.0)
    assert_right(found, np.zeros((1, 200)), 1.0)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_half_types(dtype: str) -> None:
    hidden = make_hidden(2, 13)
    found, stored = log_z_of(make_softmax(300, 13), hidden, 0.7, dtype=dtype)
    assert_right(found, logits64(stored.weight, stored.bias, hidden), 0.7)


def test_edits_take_the_place_of_logits() -> None:
    softmax, hidden = make_softmax(150, 9), make_hidden(4, 9)
    logits = logits64(softmax.weight, softmax.bias, hidden)
    edited: Edited = [
        ([], []),
        ([int(logits[1].argmax())], [-np.inf]),
        ([3, 70, 149], [50.0, 50.0, -np.inf]),
        (list(range(150)), [-np.inf] * 150),
    ]
    for row, (ids, values) in enumerate(edited):
        logits[row, ids] = values
    found, _ = log_z_of(softmax, hidden, 1.3, edited)
    assert_right(found[:3], logits[:3], 1.3)
    assert found[3].tolist() == [0, -np.inf, -np.inf, -np.inf]


@pytest.mark.parametrize("value", [np.nan, 3e38])
def test_rows_that_cannot_be_answered_have_none(value: float) -> None:
    softmax, hidden = make_softmax(100, 9), make_hidden(3, 9)
    plain, _ = log_z_of(softmax, hidden, 1.0)
    hidden[1, 5] = value
    found, _ = log_z_of(softmax, hidden, 1.0)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[::2], plain[::2])
