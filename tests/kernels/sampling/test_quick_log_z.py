"""The interval of the float32 pass: true of every kind of softmax, and as close as it promises."""

from functools import partial

import numpy as np
import pytest

from logitsieve.heads import FullHead, Softmax
from logitsieve.heads._base.edits import Edits
from tests.kernels.sampling.test_log_z import EVERY_KIND, made, over, true_rest
from tests.oracle import best, logits64
from tests.refusals import refused
from tests.stored import as_floats, stored_softmax
from tests.synthetic import make_hidden, make_softmax


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    """The interval holds log Z and its estimate, and is narrow."""
    _, value, low, high = found.T
    assert ((low <= wanted) & (wanted <= high)).all()
    assert ((low <= value) & (value <= high)).all()
    assert (high - low <= 4e-4 * np.maximum(1, np.abs(wanted))).all()


@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, 1.25), (2, 0.1), (3, 30.0)])
@EVERY_KIND
def test_the_interval_holds_log_z_in_any_batch(kind: str, seed: int, scale: float) -> None:
    head, hidden_states, logits = made(kind, seed)
    found = head.quick_log_z(hidden_states, scale)
    wanted = scale * logits.max(axis=1) + true_rest(logits, scale)
    check(found, wanted)
    for row in range(len(hidden_states)):
        for rows in range(1, 6):
            few = head.quick_log_z(hidden_states[row : row + rows].copy(), scale)
            np.testing.assert_array_equal(few, found[row : row + rows])


@pytest.mark.parametrize("size", [1e5, 1e8, 1e12, 1e30])
def test_logits_that_float32_rounds_by_much(size: float) -> None:
    head, hidden_states, _ = over(make_softmax(700, 16), make_hidden(9, 16))
    hidden_states = (hidden_states * np.float32(size)).astype(np.float32)
    logits = logits64(head._softmax.weight, head._softmax.bias, hidden_states)
    _, _, low, high = head.quick_log_z(hidden_states).T
    wanted = logits.max(axis=1) + true_rest(logits, 1.0)
    assert ((low <= wanted) & (wanted <= high)).all()
    assert (high - low <= 1e-6 * np.abs(wanted)).all()


def test_a_row_that_is_not_finite_is_refused() -> None:
    head, hidden_states, _ = over(make_softmax(50, 8), make_hidden(9, 8))
    hidden_states[2, 0] = np.inf
    for ask in (head.quick_log_z, partial(head.log_z, scale=1.0)):
        with refused("hidden_states[2]"):
            ask(hidden_states)


@pytest.mark.parametrize(("seed", "most"), [(0, 1), (1, 15), (2, 5), (3, 100)])
@EVERY_KIND
def test_the_best_rows_of_the_same_pass(kind: str, seed: int, most: int) -> None:
    head, hidden_states, logits = made(kind, seed)
    k = min(most, logits.shape[1])
    ids, values, log_z, *_ = head.best_with_log_z(hidden_states, k)
    np.testing.assert_array_equal(ids, best(logits, k))
    np.testing.assert_array_equal(values, np.take_along_axis(logits, ids, axis=1))
    np.testing.assert_array_equal(log_z, head.quick_log_z(hidden_states))


@pytest.mark.parametrize("rising", [False, True])
def test_heavy_rows_at_the_beginning_and_at_the_end(rising: bool) -> None:
    """Of sixteen rows of hidden_states and more, each of which has its largest logits elsewhere."""
    softmax, hidden_states = make_softmax(5000, 12), make_hidden(23, 12) * np.float32(4)
    order = np.argsort(softmax.weight @ hidden_states[0] * (1 if rising else -1))
    head = FullHead(Softmax(softmax.weight[order].copy(), softmax.bias[order].copy()))
    logits = logits64(head._softmax.weight, head._softmax.bias, hidden_states)
    ids, _, found, *_ = head.best_with_log_z(hidden_states, 3)
    _, _, low, high = found.T
    wanted = logits.max(axis=1) + true_rest(logits, 1.0)
    assert ((low <= wanted) & (wanted <= high) & (high - low < 1e-5)).all()
    np.testing.assert_array_equal(ids, best(logits, 3))
    np.testing.assert_array_equal(head.quick_log_z(hidden_states[22:].copy())[0], found[22])


@pytest.mark.parametrize("seed", range(3))
@EVERY_KIND
def test_edits_take_the_place_of_logits(kind: str, seed: int) -> None:
    """Rows have no edits, a few, one larger than all logits, or all ids but one banned.

    In the float32 pass, and in float64.
    """
    head, hidden_states, logits = made(kind, seed)
    random, size = np.random.default_rng(seed), logits.shape[1]
    shares = [0, 0.1, 1, 0.5, 0, 0.02, 0.9, 1, 0.3]
    ids = [np.sort(random.choice(size, int(share * size), replace=False)) for share in shares]
    values = [random.standard_normal(len(row)) * 3 for row in ids]
    for row in (2, 6):
        values[row][1:] = -np.inf
    if len(values[3]):
        values[3][0] = 1e5
    for row, (places, edits) in enumerate(zip(ids, values, strict=True)):
        logits[row, places] = edits
    offsets = np.cumsum([0, *map(len, ids)])
    edits = Edits(offsets, np.concatenate(ids).astype(np.int32), np.concatenate(values))
    for scale in (1.0, 1.4):
        found = head.quick_log_z(hidden_states, scale, edits)
        rest = true_rest(logits, scale)
        check(found, scale * logits.max(axis=1) + rest)
        _, _, low, high = head.log_z(hidden_states, scale, edits).T
        assert ((low <= rest) & (rest <= high)).all()
        for row in range(len(hidden_states)):
            alone = edits.rows(np.array([row]))
            np.testing.assert_array_equal(
                head.quick_log_z(hidden_states[row : row + 1].copy(), scale, alone)[0], found[row]
            )


@pytest.mark.parametrize("scale", [0.3, 1.25])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16", "F32"])
def test_products_of_codes_prove_a_wider_interval(kind: str, scale: float) -> None:
    softmax, hidden_states = stored_softmax(kind, 3000), make_hidden(7, 256, scale=0.3)
    head, floats = FullHead(softmax), as_floats(softmax)
    logits = logits64(floats.weight, floats.bias, hidden_states)
    wanted, spans = scale * logits.max(axis=1) + true_rest(logits, scale), []
    for ask in (head.best_with_log_z, head.rough_log_z):
        ids, values, log_z, *_ = ask(hidden_states, 5, scale)
        np.testing.assert_array_equal(ids, best(logits, 5))
        np.testing.assert_array_equal(values, np.take_along_axis(logits, ids, axis=1))
        _, value, low, high = log_z.T
        assert ((low <= wanted) & (wanted <= high)).all()
        assert ((low <= value) & (value <= high)).all()
        spans.append(high - low)
    assert (spans[1] < 0.3).all()
    assert (spans[1] > spans[0]).all() == kind.startswith("Q")  # of codes alone
