"""The rounding constants of the kernels as theorems: `python -m proofs` checks all of them."""

from __future__ import annotations

from proofs import certified, exponential, intervals, levels, log_z, route, scan

THEOREMS = [
    *certified.THEOREMS,
    *levels.THEOREMS,
    *scan.THEOREMS,
    *route.THEOREMS,
    *exponential.THEOREMS,
    *log_z.THEOREMS,
    *intervals.THEOREMS,
]
