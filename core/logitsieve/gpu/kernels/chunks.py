"""The k best of every chunk of a row's list, where the list is longer than one program ranks.

Shape letters: B rows of hidden, L values of a row's list, N chunks of CHUNK values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rank import k_best
from logitsieve.gpu.kernels.rows import ordered64
from logitsieve.gpu.kernels.status import WANTED

NOBODY = tl.constexpr(0x7FFFFFFF)  # an id that none has


@triton.jit
def chunks_kernel(
    values, ids, counts, status, best, names, L, k, slots,
    CHUNK: tl.constexpr, SLOTS: tl.constexpr, NAMED: tl.constexpr,
):  # fmt: skip
    """best and names [B, N, slots]: the k best of the first counts[r] of values [B, L] and of ids.

    Programs are (rows, chunks). Only rows WANTED are looked at, whose counts may be more than L.
    k is `slots` at most; what is left over has a value of -inf and nobody's id. SLOTS is a power of
    two, `slots` or more. Without NAMED a value's id is its place.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(status + row) == WANTED:
        place = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = place < tl.minimum(tl.load(counts + row), L)
        found = tl.load(values + row * L + place, mask=inside, other=float("-inf"))
        owners = place
        if NAMED:
            owners = tl.load(ids + row * L + place, mask=inside, other=NOBODY)
        inside = inside & (owners != NOBODY)
        chosen = k_best(ordered64(found.to(tl.float64)), owners, inside, k)
        slot = tl.cumsum(chosen.to(tl.int32), 0) - 1
        begin = (row * tl.num_programs(1) + chunk) * slots
        tl.store(best + begin + slot, found, mask=chosen)
        tl.store(names + begin + slot, owners, mask=chosen)
        rest = tl.arange(0, SLOTS)
        spare = (rest >= tl.sum(chosen.to(tl.int32), 0)) & (rest < slots)
        tl.store(best + begin + rest, float("-inf"), mask=spare)
        tl.store(names + begin + rest, NOBODY, mask=spare)
