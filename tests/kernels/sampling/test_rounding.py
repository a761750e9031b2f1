from fractions import Fraction

import numpy as np
import pytest

from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.sampling.rounding import raise_log_z, round_log_probs, round_log_z
from logitsieve.kernels.topk.merge import FIELDS


def log_z_of(logits: np.ndarray) -> np.ndarray:
    rows, count = logits.shape
    fields = np.empty((rows, FIELDS))
    csr_log_z(np.arange(rows + 1) * count, logits.ravel(), 1.0, fields)
    return fields


def printed(
    logits: np.ndarray, ids: np.ndarray, fields: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    out, proven = np.empty(ids.shape, np.float32), np.empty(len(ids), np.bool_)
    round_log_probs(logits, ids.astype(np.int32), fields, 1.0, out, proven)
    return out, proven


def test_an_estimate_is_raised_to_what_its_own_ids_weigh() -> None:
    """Ids that are named twice weigh once; an estimate that is high enough stays."""
    logits = np.array([[1.0, 1.0, 0.0, -np.inf]] * 2)
    ids = np.array([[7, 7, 3, 9]] * 2)
    fields = np.array([[0.0, -5.0, -np.inf, np.inf], [0.0, 9.0, -np.inf, np.inf]])
    found, proven = printed(logits, ids, fields)
    assert not proven.any()
    wanted = np.log(np.exp(1.0) + 1)
    np.testing.assert_allclose(found[0], [1 - wanted, 1 - wanted, -wanted, -np.inf], rtol=1e-6)
    assert np.exp(found[0, 1:].astype(np.longdouble)).sum() <= 1
    np.testing.assert_allclose(found[1], [-8.0, -8.0, -9.0, -np.inf], rtol=1e-6)
    raise_log_z(np.full((1, 2), -np.inf), np.zeros((1, 2), np.int32), fields[:1], 1.0)
    assert fields[0, 1] == pytest.approx(wanted)


def test_what_float32_does_not_hold_is_raised_or_proven() -> None:
    """A thousand ids of e^-37.5 are added up before the best, and not lost beside its 1."""
    logits = np.append(np.full(1000, -37.5), 0.0)[None]
    fields = np.array([[0.0, 0.0, -np.inf, np.inf]])
    found = printed(logits, np.arange(1001)[None], fields)[0][0].astype(np.longdouble)
    assert np.expm1(found[-1]) + np.exp(found[:-1]).sum() <= 0
    logits = np.array([[3e38, -3e38, 0.0]])
    found, proven = printed(logits, np.array([[0, 1, 2]]), log_z_of(logits))
    assert proven.all()
    assert found[0, 1] == -np.inf
    assert np.isfinite(found[0, [0, 2]]).all()


@pytest.mark.parametrize("top", [0.0, 1e-30, -3.7, 1e9, 1e38, 1e45, -1e45])
def test_bounds_of_log_z_are_rounded_outward(top: float) -> None:
    fields = np.array([[top, 0.1, 0.1 - 1e-13, 0.1 + 1e-13], [top, 0.1, -np.inf, np.inf]])
    out = np.empty((3, 2), np.float32)
    round_log_z(fields, 0.5, out)
    value, low, high = out[:, 0].tolist()
    base = Fraction(top) / 2
    assert low <= base + Fraction(fields[0, 2])
    assert base + Fraction(fields[0, 3]) <= high
    assert low <= value <= high
    with np.errstate(over="ignore"):
        assert high <= np.nextafter(np.nextafter(np.float32(low), np.inf), np.inf)
    assert out[1:, 1].tolist() == [-np.inf, np.inf]
