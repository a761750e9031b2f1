"""Compiles every kernel of every plan for a GPU, on a machine without one; launches nothing.

`python -m tests.gpu.compile_plans 90` names the compute capability; `all` adds every type of W, and
one row beside many.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from logitsieve.gpu.matrix import DeviceSketch, Matrix
from logitsieve.gpu.plans import empty_output
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.draws import (
    DeviceEdits,
    DrawPlan,
    LogZPlan,
    draw_inputs,
    draw_listed,
)
from logitsieve.gpu.plans.exact import ExactPlan, named_logits
from logitsieve.gpu.plans.nucleus import NucleusPlan
from tests.gpu.compile_lists import run_lists, run_many_lists, run_svd

TYPES = (torch.float32, torch.float16, torch.int16)


class CompileOnlyDriver:
    """A driver, so far as compiling needs one."""

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
    """A launch that compiles and does no more; `compiled` gets the names of kernels."""
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


def run_plans(dtype: torch.dtype, rows: int) -> None:
    """Every plan, for that many rows."""
    softmax, hidden = matrix(dtype), torch.zeros((rows, 64))
    ExactPlan(softmax, hidden, 5).run()
    run_lists(softmax, hidden)
    run_svd(softmax, hidden)
    run_sums(dtype, hidden)
    run_certified(softmax, hidden)


def run_sums(dtype: torch.dtype, hidden: torch.Tensor) -> None:
    """Named logits, log Z and draws, with edits and without."""
    rows, softmax = len(hidden), matrix(dtype)
    inputs = draw_inputs(hidden)
    ids, values = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float64)
    edits = DeviceEdits(torch.zeros(rows + 1, dtype=torch.int64), ids, values)
    named_logits(softmax, hidden, torch.zeros((rows, 3), dtype=torch.int32))
    listed, filters = torch.zeros((rows, 40), dtype=torch.int32), torch.ones(3, dtype=torch.float64)
    draw_listed(listed, listed.double(), 3, *inputs[1:], filters)
    for instead in (None, edits):
        DrawPlan(softmax, hidden, 3, inputs, instead).run()
        LogZPlan(softmax, hidden, inputs, instead).run()
        NucleusPlan(softmax, hidden, 3, inputs, instead).run()
        CertifiedDrawPlan(softmax, sketch_of(softmax), hidden, 3, inputs, instead).run()


def run_certified(softmax: Matrix, hidden: torch.Tensor) -> None:
    """The k best; and as a fallback."""
    rows, sketch = len(hidden), sketch_of(softmax)
    after = empty_output(rows, 5, hidden.device), torch.zeros(rows, dtype=torch.int32)
    CertifiedPlan(softmax, sketch, hidden, 5).run()
    CertifiedPlan(softmax, sketch, hidden, 5, after).run()


def sketch_of(softmax: Matrix) -> DeviceSketch:
    """Codes of an odd number of steps."""
    vocab_size, dim = softmax.weight.shape
    codes, each = torch.zeros((vocab_size, 192), dtype=torch.int8), torch.zeros(vocab_size)
    terms, turning = torch.zeros(12, dtype=torch.float64), torch.zeros((dim, dim))
    return DeviceSketch(turning, torch.ones(dim), turning, codes, each, each, terms)


if __name__ == "__main__":
    names: list[str] = []
    driver.set_active(CompileOnlyDriver(int(sys.argv[1])))
    JITFunction.run = compile_only(names)
    run_many_lists(matrix(torch.float32), torch.zeros((1, 64)))
    for dtype in TYPES if "all" in sys.argv else TYPES[:1]:
        for rows in (1, 33) if "all" in sys.argv else (33,):
            run_plans(dtype, rows)
    if "all" in sys.argv:
        run_svd(matrix(torch.float32, 20_000), torch.zeros((1, 64)))
    print("\n".join(names))
