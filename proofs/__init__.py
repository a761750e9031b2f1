"""The rounding constants of the kernels as theorems: `python -m proofs` checks all of them."""

from __future__ import annotations

from proofs import certified, exponential, intervals, levels, log_z, route, scan

MODULES = certified, levels, scan, route, exponential, log_z, intervals
THEOREMS = [theorem for module in MODULES for theorem in module.THEOREMS]
