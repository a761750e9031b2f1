"""Exact logits in float64: of named ids, or of all of V.

Shape letters: B rows of hidden, V vocabulary, D hidden size, M ids of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.check_finite import admissible
from logitsieve.gpu.kernels.rows import dot64, norm_of


@triton.jit
def gather_kernel(
    weight, bias, hidden, limits, ids, logits, V, D, M,
    BLOCK: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """logits [B, M] of ids [B, M], -inf where an id is negative; programs are (rows, blocks of M).

    ALL: of the ids 0 .. M-1, `ids` not being read. NaN for rows that are not finite or so large
    that a logit might overflow.
    """
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < M
    named = place
    if not ALL:
        named = tl.load(ids + row * M + place, mask=inside, other=-1)
    known = inside & (named >= 0) & (named < V)
    found = dot64(weight, named, known, hidden + row * D, D)
    found += tl.load(bias + named, mask=known, other=0.0).to(tl.float64)
    fits = admissible(norm_of(hidden + row * D, D), limits)
    found = tl.where(known, found, float("-inf"))
    tl.store(logits + row * M + place, tl.where(fits, found, float("nan")), mask=inside)
