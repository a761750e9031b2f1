"""The Triton kernels give the bits of the same steps by tensor operations, and compile for GPUs.

Without a GPU they run under Triton's interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from logitsieve.gpu.gumbel_draws import gumbel_noise, launch_gumbel_noise
from logitsieve.gpu.matrix import exact_logits, launch_exact_logits
from tests.gpu.opened import TYPES, matrix_of, stored_as, there
from tests.synthetic import make_hidden, make_softmax

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "count", "dim"), [(1, 1, 1), (3, 37, 20), (2, 70, 48)])
def test_exact_logits(dtype: str, rows: int, count: int, dim: int) -> None:
    matrix = matrix_of(stored_as(make_softmax(90, dim), dtype))
    ids = np.random.default_rng(3).integers(-1, 90, (rows, count)).astype(np.int32)
    hidden_states = make_hidden(rows, dim)
    weight, bias = matrix.weight.cpu(), matrix.bias.cpu()
    expected = exact_logits(weight, bias, torch.from_numpy(hidden_states), torch.from_numpy(ids))
    found = launch_exact_logits(matrix.weight, matrix.bias, there(hidden_states), there(ids))
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("step", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("first_id", [0, 64])
def test_gumbel_noise(step: int, first_id: int) -> None:
    seeds = np.array([0, 1, 2**64 - 5], np.uint64)
    asked = step, range(3, 5), range(first_id, first_id + 75)
    expected = gumbel_noise(torch.from_numpy(seeds.view(np.int64)), *asked)
    found = launch_gumbel_noise(there(seeds), *asked)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", ["80", pytest.param("90", marks=pytest.mark.exhaustive)])
def test_kernels_compile(capability: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.compile", capability]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["exact_logits_kernel"] * 3 + ["gumbel_kernel"]
