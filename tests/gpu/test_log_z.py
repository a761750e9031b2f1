"""log Z in tensors prints what log Z in arrays prints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.api.results import rounded_down as rounded_down_on_host
from logitsieve.decoding.log_z import LogZ
from logitsieve.gpu.log_z import DeviceLogZ, rounded_down
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.topk.merge import FIELDS
from tests.gpu.softmaxes import tensor

SCALE = 1.3
RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.standard_normal((6, 40)) * np.array([[0.01], [1], [5], [30], [900], [1]])
LOGITS[5, 3] = 60.0


def fields_of(logits: np.ndarray) -> np.ndarray:
    """[B, 4] log Z of all the logits of a row."""
    fields = np.empty((len(logits), FIELDS))
    csr_log_z(np.arange(len(logits) + 1) * logits.shape[1], logits.ravel(), SCALE, fields)
    return fields


@pytest.mark.parametrize("width", [0.0, 1e-9, 1e-4, 3.0])
def test_it_prints_the_hosts_numbers(width: float) -> None:
    fields = fields_of(LOGITS)
    fields[:, 2] -= width
    fields[:, 3] += width
    host, gpu = LogZ(fields, SCALE), DeviceLogZ.of(tensor(fields), SCALE)
    for mine, theirs in zip(gpu.printed()[:3], host.printed()[:3], strict=True):
        np.testing.assert_array_equal(mine.cpu(), theirs)
    ids = RANDOM.integers(0, 40, (6, 7)).astype(np.int32)
    logits = np.take_along_axis(LOGITS, ids.astype(int), 1)
    logits[2, 4] = -np.inf
    found, exact = gpu.log_probs(tensor(logits), tensor(ids))
    wanted, proven = host.log_probs(logits, ids)
    np.testing.assert_array_equal(exact.cpu(), proven)
    np.testing.assert_array_equal(found.cpu()[exact.cpu()], wanted[proven])
    np.testing.assert_allclose(found.cpu(), wanted, rtol=2e-7)
    assert (found <= 0).all()


def test_an_estimate_below_is_raised_to_what_different_ids_weigh() -> None:
    low = np.full((6, 3), -5000.0)
    low[:, 2] = 5000.0
    gpu = DeviceLogZ.of(tensor(low), SCALE)
    ids = np.array([[3, 3, 5, 1, 5]] * 6, np.int32)
    logits = np.take_along_axis(LOGITS, ids.astype(int), 1)
    found, exact = gpu.log_probs(tensor(logits), tensor(ids))
    assert not exact.any()
    once = found.double().cpu().numpy()[:, [0, 2, 3]]
    sums = np.exp(once).sum(axis=1)
    assert (sums <= 1).all()
    assert (sums > 1 - 1e-6).all()
    host = LogZ(np.pad(low, ((0, 0), (1, 0))), SCALE).raised(logits, ids)
    raised = gpu.raised(tensor(logits), tensor(ids))
    np.testing.assert_allclose(raised.value.cpu(), host.value, rtol=1e-11)


def test_a_row_without_numbers_proves_nothing() -> None:
    fields = fields_of(LOGITS)
    fields[1] = np.nan
    logits = LOGITS[:, :3].copy()
    logits[1] = np.nan
    gpu, ids = DeviceLogZ.of(tensor(fields), SCALE), tensor(np.tile(np.arange(3), (6, 1)))
    found, exact = gpu.log_probs(tensor(logits), ids)
    assert found.isnan().all(1).nonzero().tolist() == [[1]]
    assert (~exact).nonzero().tolist() == [[1]]
    assert all(each.isnan().nonzero().tolist() == [[1]] for each in gpu.printed()[:3])


def test_a_log_probability_beyond_float32_is_proven_as_on_the_host() -> None:
    fields, ids = fields_of(LOGITS), np.tile(np.arange(3, dtype=np.int32), (6, 1))
    logits = LOGITS[:, :3].copy()
    logits[:, 1] = -1e39
    found, exact = DeviceLogZ.of(tensor(fields), SCALE).log_probs(tensor(logits), tensor(ids))
    wanted, proven = LogZ(fields, SCALE).log_probs(logits, ids)
    assert proven.all()
    np.testing.assert_array_equal(exact.cpu(), proven)
    np.testing.assert_array_equal(found.cpu(), wanted)
    assert (wanted[:, 1] == -np.inf).all()


def test_rounding_down() -> None:
    values = np.array([0.1, -0.1, 1.0, 1e-50, -1e-50, 1e39, -1e39, np.inf, -np.inf, np.nan])
    found = rounded_down(tensor(values))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.cpu(), rounded_down_on_host(values))
