import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.kernels.sampling.lsh_softmax import sampled_log_z
from tests.oracle import best, log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax(400, 8, scale=0.5)
HIDDEN = make_hidden(1, 8)
LOGITS = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)


def estimated(
    named: list[int],
    size: int,
    seeds: int,
    scale: float = 1.0,
    matrix: Softmax = SOFTMAX,
    hidden: np.ndarray = HIDDEN,
    values: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(log Z, its error) for as many seeds."""
    logits = logits64(matrix.weight, matrix.bias, hidden)[0]
    if values is None:
        values = logits[named]
    offsets = np.arange(seeds + 1) * len(named)
    log_z = np.empty((seeds, 2), np.float32)
    bad = sampled_log_z(
        matrix.descriptor.ctypes.data, np.repeat(hidden, seeds, axis=0),
        np.arange(seeds, dtype=np.uint64), scale, offsets,
        np.tile(np.array(named, np.int32), seeds), np.tile(values, seeds),
        np.full(seeds, size), log_z,
    )  # fmt: skip
    assert bad == -1
    return log_z[:, 0], log_z[:, 1]


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("count", "size"), [(0, 60), (30, 20), (100, 40)])
def test_it_is_unbiased_and_its_error_is_what_it_errs(count: int, size: int, scale: float) -> None:
    log_z, error = estimated(best(LOGITS, 400)[0, :count].tolist(), size, 4000, scale)
    off = log_z - log_sum_exp(LOGITS[0] * scale)
    assert abs(off.mean()) < 4 * off.std() / np.sqrt(len(off)) + off.std() ** 2 / 2
    if count:
        assert np.sqrt((error**2).mean()) == pytest.approx(off.std(), rel=0.1)
    assert (error > 0).all()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize(("count", "size"), [(0, 200), (0, 400), (30, 185), (399, 1), (400, 0)])
def test_nothing_is_estimated_where_half_is_asked_for(count: int, size: int, scale: float) -> None:
    named = np.random.default_rng(0).permutation(400)[:count].tolist()
    log_z, error = estimated(named, size, 3, scale)
    np.testing.assert_allclose(log_z, log_sum_exp(LOGITS[0] * scale), rtol=2e-7)
    assert (error == 0).all()


def test_named_ids_that_are_out_of_the_question() -> None:
    """Nothing inside to scale by, and what is outside would overflow."""
    named = best(LOGITS, 400)[0, :50].tolist()
    rest = np.delete(LOGITS[0], named)
    log_z, error = estimated(named, 400, 2, 1e3, values=np.full(50, -np.inf))
    np.testing.assert_allclose(log_z, log_sum_exp(rest * 1e3), rtol=2e-7)
    assert (error == 0).all()
    assert np.isfinite(estimated(named, 40, 50, 1e3, values=np.full(50, -np.inf))).all()


def test_logits_far_above_those_named() -> None:
    weight = np.zeros((100, 2), np.float32)
    weight[7] = 1e4
    matrix = Softmax(weight, np.zeros(100, np.float32))
    hidden = np.ones((1, 2), np.float32)
    log_z, error = estimated([3], 60, 2, matrix=matrix, hidden=hidden)
    np.testing.assert_array_equal(log_z, np.float32(2e4))
    assert (error == 0).all()
    assert np.isfinite(estimated([3], 20, 300, matrix=matrix, hidden=hidden)).all()
