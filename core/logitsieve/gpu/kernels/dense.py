"""The k best of all rows of W in float64, for rows whose candidates were too many to list.

So it is where many logits are equal, as those of a row of zeros. Each program keeps the best of its
share of the ids; rank.py takes the best of all.

Shape letters: B rows of hidden, V vocabulary, D hidden size, L values of a row's list.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import dot64
from logitsieve.gpu.kernels.status import DENSE

NOBODY = tl.constexpr(0x7FFFFFFF)  # an id that none has


@triton.jit
def dense_kernel(
    weight, bias, hidden, status, values, ids, V, D, share,
    KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """KEPT values and ids of [B, L] for rows of status DENSE; programs are (rows, shares)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(status + row) == DENSE:
        places = tl.arange(0, KEPT)
        best = tl.full([KEPT], float("-inf"), tl.float64)
        owners = NOBODY - places
        for start in range(part * share, tl.minimum(part * share + share, V), BLOCK):
            named = start + tl.arange(0, BLOCK)
            inside = (named < V) & (named < part * share + share)
            found = dot64(weight, named, inside, hidden + row * D, D)
            found += tl.load(bias + named, mask=inside, other=0.0).to(tl.float64)
            found = tl.where(inside, found, float("-inf"))
            most, least = tl.max(found, 0), tl.min(best, 0)
            # Ids rise, so that an equal value never displaces one.
            while most > least:
                taken = tl.min(tl.where(found == most, named, NOBODY), 0)
                leaving = tl.max(tl.where(best == least, owners, -1), 0)
                best = tl.where(owners == leaving, most, best)
                owners = tl.where(owners == leaving, taken, owners)
                found = tl.where(named == taken, float("-inf"), found)
                most, least = tl.max(found, 0), tl.min(best, 0)
        begin = (row * tl.num_programs(1) + part) * KEPT
        tl.store(values + begin + places, best)
        tl.store(ids + begin + places, owners)
