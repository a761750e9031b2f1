"""Exact logits of the ids of listed groups.

Shape letters: B rows of hidden, V vocabulary, D hidden size, C groups listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import dot64


@triton.jit
def resum_kernel(
    weight, bias, hidden, listed, counts, values, ids, V, D,
    C: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """values and ids [B, C GROUP]; the programs of a row share what it lists.

    -inf beyond V; what lies beyond a row's count is not written.
    """
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, GROUP)
    for slot in range(tl.program_id(1), tl.load(counts + row), tl.num_programs(1)):
        named = tl.load(listed + row * C + slot) * GROUP + lane
        inside = named < V
        found = dot64(weight, named, inside, hidden + row * D, D)
        found += tl.load(bias + named, mask=inside, other=0.0).to(tl.float64)
        places = (row * C + slot) * GROUP + lane
        tl.store(values + places, tl.where(inside, found, float("-inf")))
        tl.store(ids + places, named)
