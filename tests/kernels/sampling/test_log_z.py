import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.heads.full import FullHead
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE
from tests.oracle import log_probs, logits64
from tools.attacks.decoders import KINDS

EVERY_KIND = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "odd"])
Made = tuple[FullHead, np.ndarray, np.ndarray]  # the head, rows of hidden_states, float64 logits


def over(softmax: Softmax, hidden_states: np.ndarray) -> Made:
    return FullHead(softmax), hidden_states, logits64(softmax.weight, softmax.bias, hidden_states)


def made(kind: str, seed: int) -> Made:
    return over(*KINDS[kind](np.random.default_rng(seed), 9))


def true_rest(logits: np.ndarray, scale: float) -> np.ndarray:
    """log Z less scale times the largest logit, by row."""
    tops = logits.max(axis=1, keepdims=True)
    apart = (logits.astype(np.longdouble) - tops) * scale
    return np.array([-log_probs(row).max() for row in apart])


@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, 3.0), (2, 0.5), (3, 1.0)])
@EVERY_KIND
def test_it_is_that_of_long_doubles(kind: str, seed: int, scale: float) -> None:
    head, hidden_states, logits = made(kind, seed)
    found, wanted = head.log_z(hidden_states, scale), true_rest(logits, scale)
    np.testing.assert_array_equal(found[:, TOP], logits.max(axis=1))
    assert ((found[:, LOW] <= wanted) & (wanted <= found[:, HIGH])).all()
    np.testing.assert_allclose(found[:, VALUE], wanted.astype(np.float64), rtol=1e-13)
    assert (found[:, HIGH] - found[:, LOW] <= 3e-12 * found[:, VALUE] + 1e-280).all()
    for row in range(len(hidden_states)):
        alone = head.log_z(hidden_states[row : row + 1].copy(), scale)[0]
        np.testing.assert_array_equal(alone, found[row])


def test_rows_of_any_length_and_scale() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal(n) * s for n, s in ((1, 1), (50, 100), (700, 1), (7, 1e4))]
    rows += [np.array([]), np.array([-np.inf] * 3), np.array([2.0, -np.inf])]
    offsets = np.cumsum([0, *map(len, rows)])
    out = np.empty((len(rows), FIELDS))
    csr_log_z(offsets, np.concatenate(rows), 1.0, out)
    for row, logits in enumerate(rows[:4]):
        wanted = true_rest(logits[None], 1.0)[0]
        assert out[row, TOP] == logits.max()
        assert out[row, LOW] <= wanted <= out[row, HIGH]
    assert out[4:6].tolist() == [[0, -np.inf, -np.inf, -np.inf]] * 2
    assert out[6].tolist() == [2.0, 0.0, 0.0, 0.0]
