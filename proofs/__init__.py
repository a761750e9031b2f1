"""The rounding constants of the kernels as theorems: `python -m proofs` checks all of them."""

from __future__ import annotations

from proofs import certified, double_double, envelope, exponential, gpu, gpu_log_z, log_z, scan

THEOREMS = [
    *certified.THEOREMS,
    *scan.THEOREMS,
    *exponential.THEOREMS,
    *log_z.THEOREMS,
    *double_double.THEOREMS,
    *envelope.THEOREMS,
    *gpu.THEOREMS,
    *gpu_log_z.THEOREMS,
]
