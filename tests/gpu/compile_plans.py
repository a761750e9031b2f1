"""Compiles every kernel of every plan for a GPU, on a machine without one; launches nothing.

`python -m tests.gpu.compile_plans 90` names the compute capability.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import empty_found
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.draws import DrawPlan
from logitsieve.gpu.plans.exact import ExactPlan
from logitsieve.gpu.plans.log_z import Edits, LogZPlan
from logitsieve.gpu.plans.logits import LogitsPlan
from logitsieve.gpu.plans.nucleus import ListDraws
from logitsieve.gpu.sketch import Sketch
from tests.gpu.compile_lists import run_lists, run_many_lists, run_svd

TYPES = (torch.float32, torch.float16, torch.int16)


class GpuArrays:
    """As much of a driver as compiling needs."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def is_active(self) -> bool:
        return True


def compile_only(compiled: list[str]) -> Any:
    """What a launch becomes: `compiled` gets the names of kernels."""
    run = JITFunction.run

    @functools.wraps(run)
    def instead(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **named)
        spilled = kernel.asm["ptx"].count("ld.local")
        compiled.append(f"{self.fn.__name__} {kernel.metadata.shared} {spilled}")
        return kernel

    return instead


def matrix(dtype: torch.dtype, rows: int = 4096, dim: int = 64) -> Matrix:
    """A matrix of zeros."""
    weight = torch.zeros((rows, dim), dtype=dtype)
    return Matrix(weight, torch.zeros(rows), torch.zeros(4, dtype=torch.float64))


def run_plans() -> None:
    """Every plan, at one row and at many."""
    run_many_lists(matrix(torch.float32), torch.zeros((1, 64)))
    run_svd(matrix(torch.float32, 20_000), torch.zeros((1, 64)))
    for dtype in TYPES:
        for rows in (1, 33):
            ExactPlan(matrix(dtype), torch.zeros((rows, 64)), 5).run()
            run_lists(matrix(dtype), torch.zeros((rows, 64)))
            run_svd(matrix(dtype), torch.zeros((rows, 64)))
            run_sums(dtype, torch.zeros((rows, 64)))
            run_certified(matrix(dtype), torch.zeros((rows, 64)))


def run_sums(dtype: torch.dtype, hidden: torch.Tensor) -> None:
    """Named logits, log Z and draws, with edits and without."""
    rows, softmax = len(hidden), matrix(dtype)
    noise = torch.zeros(rows, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    scale = torch.ones(1, dtype=torch.float64)
    ids, values = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float64)
    edits = Edits(torch.zeros(rows + 1, dtype=torch.int64), ids, values)
    LogitsPlan(softmax, hidden).run()
    LogitsPlan(softmax, hidden, torch.zeros((rows, 3), dtype=torch.int32)).run()
    LogZPlan(softmax, hidden, scale).run()
    listed, filters = torch.zeros((rows, 40), dtype=torch.int32), torch.ones(3, dtype=torch.float64)
    ListDraws(listed, listed.double(), 3, *noise, filters).run()
    for instead in (None, edits):
        DrawPlan(softmax, hidden, 3, *noise, scale, instead).run()
        sketch = sketch_of(softmax)
        CertifiedDrawPlan(softmax, sketch, hidden, 3, *noise, scale, instead).run()


def run_certified(softmax: Matrix, hidden: torch.Tensor) -> None:
    """The k best; and as a fallback."""
    rows, sketch = len(hidden), sketch_of(softmax)
    after = empty_found(rows, 5, hidden.device), torch.zeros(rows, dtype=torch.int32)
    CertifiedPlan(softmax, sketch, hidden, 5).run()
    CertifiedPlan(softmax, sketch, hidden, 5, after).run()


def sketch_of(softmax: Matrix) -> Sketch:
    """Codes of an odd number of steps."""
    vocab_size, dim = softmax.weight.shape
    codes, each = torch.zeros((vocab_size, 192), dtype=torch.int8), torch.zeros(vocab_size)
    terms = torch.zeros(7, dtype=torch.float64)
    return Sketch(torch.zeros((dim, dim)), codes, each, each, terms)


if __name__ == "__main__":
    names: list[str] = []
    driver.set_active(GpuArrays(int(sys.argv[1])))
    JITFunction.run = compile_only(names)
    run_plans()
    print("\n".join(names))
