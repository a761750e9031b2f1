"""The rounding constants of the kernels as theorems: `python -m proofs` checks all of them."""

from __future__ import annotations

from proofs import certified, gpu, scan

THEOREMS = [*certified.THEOREMS, *scan.THEOREMS, *gpu.THEOREMS]
