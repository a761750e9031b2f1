"""Compiles every kernel for a GPU on a machine without one: `python -m tests.gpu.compile 90`."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from logitsieve.gpu.gumbel_draws import IDS, LEAST_NOISE
from logitsieve.gpu.kernels import exact_logits_kernel, gumbel_kernel
from logitsieve.gpu.matrix import BLOCK, LANES
from logitsieve.kernels.sampling.gumbel import BLOCK as NOISE_BLOCK

NUMBERS = ("D", "M", "N", "V", "row_stride", "id_stride")


def compile_for(capability: int, kernel: Any, types: dict[str, str], **constants: int) -> None:
    """Compile a kernel whose pointers have those types; print its name."""
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    signature |= {name: "i32" for name in kernel.arg_names if name in NUMBERS}
    source = ASTSource(kernel, signature, constants)
    triton.compile(source, target=GPUTarget("cuda", capability, 32))
    print(kernel.__name__)


def main() -> None:
    """Compile for the compute capability that the command line names."""
    capability = int(sys.argv[1])
    for weight in ("*fp32", "*fp16", "*i16"):
        types = {"weight": weight, "bias": "*fp32", "hidden_states": "*fp32", "ids": "*i32"}
        types["logits"] = "*fp64"
        compile_for(capability, exact_logits_kernel, types, LANES=LANES, BLOCK=BLOCK)
    types = {"seeds": "*i64", "counters": "*i64", "noise": "*fp64"}
    compile_for(capability, gumbel_kernel, types, STREAM=LEAST_NOISE, BLOCK=NOISE_BLOCK, IDS=IDS)


if __name__ == "__main__":
    main()
