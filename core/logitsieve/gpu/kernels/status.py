"""The state of each row of hidden, kept on the GPU so that the host need not wait for it.

Shape letters: B rows of hidden, D hidden size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import norm_of

WANTED = tl.constexpr(0)  # to be answered from its list
REFUSED = tl.constexpr(1)  # not finite, or so large that a logit might overflow
DENSE = tl.constexpr(2)  # too many candidates to list: all of W is to be summed in float64
PASSED_ON = tl.constexpr(3)  # for the fallback to answer
ANSWERED = tl.constexpr(4)


NO_ID = tl.constexpr(0x7FFFFFFF)  # above every id


@triton.jit
def any_of(status, rows, B, state):
    """True if one of these rows is in that state."""
    states = tl.load(status + rows, mask=rows < B, other=-1)
    return tl.sum((states == state).to(tl.int32), 0) > 0


LARGEST = tl.constexpr(1e38)  # kernels/topk/descriptor.py: beyond it float32 sums may overflow


@triton.jit
def check_finite_kernel(hidden, limits, status, D):
    """status [B] WANTED, or REFUSED: not finite, or so large that a logit might overflow."""
    row = tl.program_id(0).to(tl.int64)
    fits = admissible(norm_of(hidden + row * D, D), limits)
    tl.store(status + row, tl.where(fits, WANTED, REFUSED))


@triton.jit
def admissible(norm, limits):
    """False where a logit of a row of this norm might overflow, and where the norm is NaN."""
    return norm * tl.load(limits) + tl.load(limits + 1) <= LARGEST
