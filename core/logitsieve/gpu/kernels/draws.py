"""The id of each draw: the largest scale x + G in float64, equal ones by the lower id.

From all of V, or from a list of logits, best first, which top-p and min-p cut before. The
arithmetic is that of sampling/gumbel.py and sampling/nucleus.py, operation by operation, sums in
the order of the list, so the id is, too. (Only exp and log may round their last bit differently:
two ids must be that close for it to matter.)

A slot has too many groups or ids to list where many logits are equal, as those of a row of zeros,
or where it is so cold that float32 logits say nothing. Then each program looks at its share of all
ids.

Shape letters: B rows of hidden, V vocabulary, D hidden size, N draws, K ids of a list, C ids listed
at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.exact_log_z import store_log_z
from logitsieve.gpu.kernels.exact_logits import exact_logits, largest_logit
from logitsieve.gpu.kernels.gumbel import draw_of, noise64
from logitsieve.gpu.kernels.status import NO_ID, PASSED_ON, REFUSED


@triton.jit
def dense_draws_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step,
    values, sizes, overfull, tops, best, owners, V, D, slots, share,
    C: tl.constexpr, SLOTS: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr,
    EDITS: tl.constexpr,
):  # fmt: skip
    """best and owners [B, SHARES, SLOTS]: the best of a share's ids, of overfull draws."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    full = tl.load(overfull + row * slots + slot, mask=(slot > 0) & (slot < slots), other=0) > 0
    if tl.sum(full.to(tl.int32), 0) > 0:
        most = largest_logit(values, sizes, overfull, tops, row, slots, C, SHARES)
        seed, now, factor = tl.load(seeds + row), tl.load(step), tl.load(scale)
        leading = tl.full([SLOTS], float("-inf"), tl.float64)
        winner = tl.full([SLOTS], NO_ID, tl.int32)
        end = tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, ids < end, D, EDITS
            )
            scaled = (found - most) * factor
            for own in range(1, slots):
                if tl.load(overfull + row * slots + own) > 0:
                    noisy = scaled + noise64(seed, now, draw_of(step, own - 1), ids)
                    top = tl.max(noisy, 0)
                    name = tl.min(tl.where(noisy == top, ids, NO_ID), 0)
                    # Ids rise, so that an equal value never displaces one.
                    taken = (slot == own) & (top > leading)
                    leading = tl.where(taken, top, leading)
                    winner = tl.where(taken, name, winner)
        begin = (row * SHARES + part) * SLOTS + slot
        tl.store(best + begin, leading)
        tl.store(owners + begin, winner)


@triton.jit
def argmax_draw_kernel(
    scale, seeds, step, listed, values, sizes, overfull, tops, best, owners, status, drawn, slots,
    C: tl.constexpr, SLOTS: tl.constexpr, SHARES: tl.constexpr, FALLBACK: tl.constexpr,
):  # fmt: skip
    """drawn [B, N] int32, -1 for rows REFUSED; programs are (rows, draws).

    Rows that were PASSED_ON are left out, or, with FALLBACK, all others.
    """
    row, draw = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat, state = row * slots + draw + 1, tl.load(status + row)
    wanted = state != PASSED_ON
    if FALLBACK:
        wanted = state == PASSED_ON
    if wanted:
        if state == REFUSED:
            winner = -1
        elif tl.load(overfull + flat) > 0:
            places = (row * SHARES + tl.arange(0, SHARES)) * SLOTS + draw + 1
            winner = _first_of_largest(tl.load(best + places), tl.load(owners + places))
        else:
            most = largest_logit(values, sizes, overfull, tops, row, slots, C, SHARES)
            place = tl.arange(0, C)
            inside = place < tl.load(sizes + flat)
            found = tl.load(values + flat * C + place, mask=inside, other=float("-inf"))
            ids = tl.load(listed + flat * C + place, mask=inside, other=0)
            noise = noise64(tl.load(seeds + row), tl.load(step), draw_of(step, draw), ids)
            winner = _first_of_largest((found - most) * tl.load(scale) + noise, ids)
        tl.store(drawn + row * tl.num_programs(1) + draw, winner)


@triton.jit
def _first_of_largest(values, ids):
    return tl.min(tl.where(values == tl.max(values, 0), ids, NO_ID), 0)


@triton.jit
def list_draws_kernel(
    ids, logits, seeds, step, filters, drawn, sums, log_z, K, N,
    KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """drawn [B, N] int32 with their logits `sums`; log_z [B, 4] (exact_log_z.py) of what remains.

    Of ids and logits [B, K], whose logits are NaN in rows that cannot be answered; `filters` are
    1 / temperature, top-p and min-p. Programs are (rows, blocks of N); KEPT is a power of two, K
    or more.
    """
    row = tl.program_id(0).to(tl.int64)
    own, inverse = logits + row * K, tl.load(filters)
    length, others = _cut_list(own, inverse, tl.load(filters + 1), tl.load(filters + 2), K)
    draw, place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, KEPT)
    names = tl.load(ids + row * K + place, mask=place < K, other=NO_ID)
    found, most = tl.load(own + place, mask=place < K, other=0.0), tl.load(own)
    number = draw.to(tl.uint32)[:, None]
    noise = noise64(tl.load(seeds + row), tl.load(step), number, names[None, :])
    noisy = ((found - most) * inverse)[None, :] + noise
    noisy = tl.where((place < length)[None, :], noisy, float("-inf"))
    best = (noisy == tl.max(noisy, 1)[:, None]) & (place < length)[None, :]
    winner = tl.min(tl.where(best, names[None, :], NO_ID), 1)
    winner = tl.where(most == most, winner, tl.load(ids + row * K))
    chosen = tl.sum(tl.where(names[None, :] == winner[:, None], found[None, :], 0.0), 1)
    flat, inside = row * N + draw, draw < N
    tl.store(drawn + flat, winner, mask=inside)
    tl.store(sums + flat, tl.where(most == most, chosen, most), mask=inside)
    store_log_z(log_z + 4 * row, most, others, length, K)


@triton.jit
def _cut_list(logits, inverse, top_p, min_p, K):
    """The number of the K logits, best first, that remain, and the weight of all but the first."""
    most = tl.load(logits) * inverse
    whole = tl.full([], 0.0, tl.float64)
    for i in range(K):
        whole += tl.exp(tl.load(logits + i) * inverse - most)
    reach = tl.where(top_p < 1.0, whole * top_p, float("inf"))
    total, length, wanted = tl.full([], 0.0, tl.float64), tl.full([], 0, tl.int32), most == most
    others = tl.full([], 0.0, tl.float64)
    for i in range(K):
        weight = tl.exp(tl.load(logits + i) * inverse - most)
        wanted = wanted & (weight >= min_p)
        total += tl.where(wanted, weight, 0.0)
        apart = (tl.load(logits + i) - tl.load(logits)) * inverse
        others += tl.where(wanted & (i > 0), tl.exp(apart), 0.0)
        length += wanted.to(tl.int32)
        wanted = wanted & (total < reach)
    return length, others
