"""What has become of a row of hidden, noted on the GPU so that the host need not ask."""

from __future__ import annotations

import triton
import triton.language as tl

WANTED = tl.constexpr(0)  # to be answered from its list
REFUSED = tl.constexpr(1)  # not finite, or so large that a logit might overflow
DENSE = tl.constexpr(2)  # too many candidates to list: all of W is to be summed in float64
PASSED_ON = tl.constexpr(3)  # for the fallback to answer
ANSWERED = tl.constexpr(4)


@triton.jit
def any_of(status, rows, B, state):
    """Whether one of these rows is in that state."""
    states = tl.load(status + rows, mask=rows < B, other=-1)
    return tl.sum((states == state).to(tl.int32), 0) > 0
