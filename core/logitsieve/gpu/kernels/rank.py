"""The k best of a row's list, in order, equal values by the lower id.

The k-th best value is found by halving an interval, then, among those equal to it, the last id that
is wanted; the k that remain are compared with each other.

Shape letters: B rows of hidden, K answers, L values of a row's list.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import ordered64, reached
from logitsieve.gpu.kernels.status import ANSWERED, DENSE, REFUSED, WANTED


@triton.jit
def rank_kernel(
    values, listed, counts, status, best, ids, logits, exact, scanned, k, each, dense_rows,
    L: tl.constexpr, KEPT: tl.constexpr, PROVEN: tl.constexpr, COUNTED: tl.constexpr = False,
):  # fmt: skip
    """ids and logits [B, K], exact and scanned [B] of rows WANTED, DENSE or REFUSED; then ANSWERED.

    The first counts[r] x `each` values of a row's list are ranked, all L where it is DENSE: k at
    least are expected. ids are -1 and logits NaN where REFUSED. `scanned` is the number of values,
    or `dense_rows` if DENSE, or if PROVEN and not COUNTED. `best` [B, KEPT] float64 is scratch,
    KEPT a power of two >= k.
    """
    row = tl.program_id(0).to(tl.int64)
    state, place = tl.load(status + row), tl.arange(0, L)
    if state == REFUSED:
        kept = tl.arange(0, KEPT)
        tl.store(ids + row * k + kept, tl.full([KEPT], -1, tl.int32), mask=kept < k)
        tl.store(logits + row * k + kept, tl.full([KEPT], float("nan"), tl.float32), mask=kept < k)
        tl.store(exact + row, 0)
        tl.store(scanned + row, 0)
        tl.store(status + row, ANSWERED)
    elif (state == WANTED) | (state == DENSE):
        count = tl.where(state == DENSE, L, tl.load(counts + row) * each)
        found = tl.load(values + row * L + place, mask=place < count, other=float("-inf"))
        named = tl.load(listed + row * L + place, mask=place < count, other=0x7FFFFFFF)
        chosen = k_best(ordered64(found), named, place < count, k)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(best + row * KEPT + slots, found, mask=chosen)
        tl.store(ids + row * k + slots, named, mask=chosen)
        tl.debug_barrier()
        _order(best + row * KEPT, ids + row * k, logits + row * k, k, KEPT)
        proven = PROVEN | (state == DENSE)
        tl.store(exact + row, proven.to(tl.int8))
        every = (PROVEN and not COUNTED) | (state == DENSE)
        tl.store(scanned + row, tl.where(every, dense_rows, count))
        tl.store(status + row, ANSWERED)


@triton.jit
def k_best(keys, ids, inside, k):
    """Which k of the keys are the largest, equal ones by the lower id."""
    low, count = reached(keys, inside, k, k)
    above, equal = inside & (keys > low), inside & (keys == low)
    wanted = k - tl.sum(above.to(tl.int32), 0)
    first, last = tl.min(ids, 0), tl.max(tl.where(equal, ids, -1), 0)
    while (first < last) & (count > k):
        middle = first + (last - first) // 2
        enough = tl.sum((equal & (ids <= middle)).to(tl.int32), 0) >= wanted
        last = tl.where(enough, middle, last)
        first = tl.where(enough, first, middle + 1)
    return above | (equal & (ids <= last))


@triton.jit
def _order(values, ids, logits, k, KEPT: tl.constexpr):
    """Sort k values and ids, best first; every one is compared with every other."""
    place = tl.arange(0, KEPT)
    inside = place < k
    own, name = tl.load(values + place, mask=inside), tl.load(ids + place, mask=inside)
    better = (own[None, :] > own[:, None]) | (
        (own[None, :] == own[:, None]) & (name[None, :] < name[:, None])
    )
    rank = tl.sum((better & inside[None, :]).to(tl.int32), 1)
    tl.debug_barrier()
    tl.store(ids + rank, name, mask=inside)
    tl.store(logits + rank, own.to(tl.float32), mask=inside)
