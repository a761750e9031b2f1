"""Whether a row of hidden can be answered at all.

Shape letters: B rows of hidden, D hidden size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import norm_of
from logitsieve.gpu.kernels.status import REFUSED, WANTED

LARGEST = tl.constexpr(1e38)  # kernels/topk/descriptor.py: beyond it float32 sums may overflow


@triton.jit
def admit_kernel(hidden, limits, status, D):
    """status [B] WANTED, or REFUSED: not finite, or so large that a logit might overflow."""
    row = tl.program_id(0).to(tl.int64)
    fits = admissible(norm_of(hidden + row * D, D), limits)
    tl.store(status + row, tl.where(fits, WANTED, REFUSED))


@triton.jit
def admissible(norm, limits):
    """False where a logit of a row of this norm might overflow, and where the norm is NaN."""
    return norm * tl.load(limits) + tl.load(limits + 1) <= LARGEST
