"""The k best of a row's values, in order, equal values by the lower id.

The k-th best value is found by halving an interval, then, among those equal to it, the last id that
is wanted; the k that remain are compared with each other. A list longer than one program ranks
is first cut to the k best of each chunk. A row with too many candidates to list, such as a row
of zeros, is answered from all of W in float64.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, L values of a row's list,
N chunks of CHUNK values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import dot64
from logitsieve.gpu.kernels.status import ANSWERED, DENSE, NO_ID, REFUSED, WANTED


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
    """A mask of the k largest keys, equal ones by the lower id."""
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


@triton.jit
def ordered32(values):
    """int32 that compare as these float32 do."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered32(keys):
    """The float32 of such an int32."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ordered64(values):
    """int64 that compare as these float64 do; both zeros are one."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@triton.jit
def above_middle(low, high):
    """The middle of two integers, rounded up, without overflow."""
    return (low | high) - ((low ^ high) >> 1)


@triton.jit
def reached(keys, inside, k, most):
    """The largest integer that at least k of the keys reach, or any that no more than `most` do.

    And how many reach it. Keys are int32 or int64.
    """
    largest: tl.constexpr = 0x7FFFFFFFFFFFFFFF if keys.dtype == tl.int64 else 0x7FFFFFFF
    low = tl.min(tl.where(inside, keys, largest), 0)
    high = tl.max(tl.where(inside, keys, -largest - 1), 0)
    reaching = tl.sum(inside.to(tl.int32), 0)
    while (low < high) & (reaching > most):
        middle = above_middle(low, high)
        count = tl.sum((inside & (keys >= middle)).to(tl.int32), 0)
        low = tl.where(count >= k, middle, low)
        reaching = tl.where(count >= k, count, reaching)
        high = tl.where(count >= k, high, middle - 1)
    return low, reaching


@triton.jit
def kth_floor(keys, inside, k):
    """An integer that at least k of the keys reach, and at most 2 k where that can be."""
    return reached(keys, inside, k, 2 * k)[0]


@triton.jit
def kth_largest(keys, inside, k):
    """The k-th largest key."""
    return reached(keys, inside, k, 0)[0]


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
            owners = tl.load(ids + row * L + place, mask=inside, other=NO_ID)
        inside = inside & (owners != NO_ID)
        chosen = k_best(ordered64(found.to(tl.float64)), owners, inside, k)
        slot = tl.cumsum(chosen.to(tl.int32), 0) - 1
        begin = (row * tl.num_programs(1) + chunk) * slots
        tl.store(best + begin + slot, found, mask=chosen)
        tl.store(names + begin + slot, owners, mask=chosen)
        rest = tl.arange(0, SLOTS)
        spare = (rest >= tl.sum(chosen.to(tl.int32), 0)) & (rest < slots)
        tl.store(best + begin + rest, float("-inf"), mask=spare)
        tl.store(names + begin + rest, NO_ID, mask=spare)


@triton.jit
def dense_topk_kernel(
    weight, bias, hidden, status, values, ids, V, D, share,
    KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """KEPT values and ids of [B, L] for rows of status DENSE; programs are (rows, shares)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(status + row) == DENSE:
        places = tl.arange(0, KEPT)
        best = tl.full([KEPT], float("-inf"), tl.float64)
        owners = NO_ID - places
        for start in range(part * share, tl.minimum(part * share + share, V), BLOCK):
            named = start + tl.arange(0, BLOCK)
            inside = (named < V) & (named < part * share + share)
            found = dot64(weight, named, inside, hidden + row * D, D)
            found += tl.load(bias + named, mask=inside, other=0.0).to(tl.float64)
            found = tl.where(inside, found, float("-inf"))
            most, least = tl.max(found, 0), tl.min(best, 0)
            # Ids rise, so that an equal value never displaces one.
            while most > least:
                taken = tl.min(tl.where(found == most, named, NO_ID), 0)
                leaving = tl.max(tl.where(best == least, owners, -1), 0)
                best = tl.where(owners == leaving, most, best)
                owners = tl.where(owners == leaving, taken, owners)
                found = tl.where(named == taken, float("-inf"), found)
                most, least = tl.max(found, 0), tl.min(best, 0)
        begin = (row * tl.num_programs(1) + part) * KEPT
        tl.store(values + begin + places, best)
        tl.store(ids + begin + places, owners)
