"""Draws from what top-p and min-p leave of all of V, in float64.

In the order of a list, best first and equal ones by the lower id, an id is left if all before it
weigh less than top-p of the whole, and if it weighs at least min-p of the best. Weights are
e^{scale (x - top)}, top being the largest logit. The last id that top-p leaves is found without
sorting, digit by digit from the highest bits of its key: a pass weighs the ids whose key begins
with the digits found so far, by their next digit. A key is the bits of the logit, then V - 1 - id,
so that keys fall in the order of the list. Then one pass draws from the ids that are left.

Sums are added in another order than the host's. It matters only where the weight before an id is
that of top-p but for what float64 rounds.

Shape letters: B rows of hidden, V vocabulary, D hidden size, N draws.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.exact_log_z import REPLACED, store_log_z
from logitsieve.gpu.kernels.exact_logits import exact_logits
from logitsieve.gpu.kernels.gumbel import draw_of, noise64
from logitsieve.gpu.kernels.status import NO_ID, WANTED
from logitsieve.gpu.kernels.topk import ordered64

BITS, DIGITS = tl.constexpr(6), tl.constexpr(64)  # bits of a digit, and how many values it has
SIGN = tl.constexpr(1 << 63)


@triton.jit
def dense_logits_kernel(
    weight, bias, hidden, offsets, edited, instead, status, logits, tops, V, D, share,
    BLOCK: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """logits [B, V] and tops [B, shares], the largest of a share, of rows WANTED."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(status + row) == WANTED:
        most, end = tl.full([], float("-inf"), tl.float64), tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            inside = ids < end
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, inside, D, EDITS
            )
            tl.store(logits + row * V + ids, found, mask=inside)
            most = tl.maximum(most, tl.max(found, 0))
        tl.store(tops + row * tl.num_programs(1) + part, most)


@triton.jit
def weigh_digits_kernel(
    logits, tops, status, scale, keys, sums, V, share, shares, shift,
    IDS: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums [B, shares, DIGITS]: what ids weigh by the digit of their key at bit `shift`.

    Of ids whose key begins with the digits of keys [B, 2]. The digit is one of the word of the id,
    if IDS, or of that of the logit.
    """
    row, part, lane = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, DIGITS)
    if tl.load(status + row) == WANTED:
        most, factor = _largest(tops, row, shares, SHARES), tl.load(scale)
        key = tl.load(keys + row * 2).to(tl.uint64, bitcast=True)
        total, end = tl.zeros([DIGITS], tl.float64), tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            found = tl.load(logits + row * V + ids, mask=ids < end, other=float("-inf"))
            bits = _bits(found)
            inside, prefix = ids < end, key
            if IDS:
                inside = inside & (bits == key)
                bits = (V - 1 - ids).to(tl.uint64)
                prefix = tl.load(keys + row * 2 + 1).to(tl.uint64, bitcast=True)
            inside = inside & ((bits >> shift >> BITS) == (prefix >> shift >> BITS))
            if tl.sum(inside.to(tl.int32), 0) > 0:
                digit = ((bits >> shift) & (DIGITS - 1)).to(tl.int32)
                weights = tl.where(inside, tl.exp((found - most) * factor), 0.0)
                apart = tl.where(digit[:, None] == lane[None, :], weights[:, None], 0.0)
                total += tl.sum(apart, 0)
        tl.store(sums + (row * shares + part) * DIGITS + lane, total)


@triton.jit
def next_digit_kernel(
    filters, status, sums, keys, masses, shares, shift,
    FIRST: tl.constexpr, IDS: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Append a digit to keys [B, 2]: to the word of the id, if IDS, or to that of the logit.

    It is the largest for which the ids with a key as large or larger weigh top-p of all. masses
    [B, 2]: top-p of all, and the weight of the ids with a larger key. FIRST digit of a word.
    """
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, DIGITS)
    if tl.load(status + row) == WANTED:
        share, word = tl.arange(0, SHARES)[:, None], keys + row * 2
        places = (row * shares + share) * DIGITS + lane[None, :]
        mass = tl.sum(tl.load(sums + places, mask=share < shares, other=0.0), 0)
        reach, above = tl.load(masses + row * 2), tl.load(masses + row * 2 + 1)
        if IDS:
            word += 1
        digits = tl.load(word)
        if FIRST:
            digits = tl.zeros_like(digits)
            if not IDS:
                reach, above = tl.sum(mass, 0) * tl.load(filters), tl.zeros_like(above)
        as_large = tl.where(lane[None, :] >= lane[:, None], mass[None, :], 0.0)
        enough = above + tl.sum(as_large, 1) >= reach
        digit = tl.max(tl.where(enough, lane, 0), 0)
        above += tl.sum(tl.where(lane > digit, mass, 0.0), 0)
        tl.debug_barrier()  # all threads have read what is written now
        tl.store(masses + row * 2, reach)
        tl.store(masses + row * 2 + 1, above)
        tl.store(word, digits | (digit.to(tl.int64) << shift))


@triton.jit
def nucleus_draws_kernel(
    logits, tops, status, scale, seeds, step, filters, keys, best, owners, rest, V, share, shares,
    SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """best and owners [B, N, shares]: the best of a share's ids that are left, for each draw.

    rest [B, shares, 2]: what those weigh that are below the largest, and how many are as large.
    Programs are (rows, shares, draws).
    """
    row, part, draw = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if tl.load(status + row) == WANTED:
        most, factor = _largest(tops, row, shares, SHARES), tl.load(scale)
        seed, now, number = tl.load(seeds + row), tl.load(step), draw_of(step, draw)
        key = tl.load(keys + row * 2).to(tl.uint64, bitcast=True)
        last, min_p = V - 1 - tl.load(keys + row * 2 + 1), tl.load(filters + 1)
        leading = tl.full([], float("-inf"), tl.float64)
        winner = tl.full([], NO_ID, tl.int32)
        below, equal = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
        end = tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            found = tl.load(logits + row * V + ids, mask=ids < end, other=float("-inf"))
            bits, scaled = _bits(found), (found - most) * factor
            left = (ids < end) & ((bits > key) | ((bits == key) & (ids <= last)))
            left = left & (tl.exp(scaled) >= min_p)
            if tl.sum(left.to(tl.int32), 0) > 0:
                noisy = tl.where(left, scaled + noise64(seed, now, number, ids), float("-inf"))
                top = tl.max(noisy, 0)
                name = tl.min(tl.where(left & (noisy == top), ids, NO_ID), 0)
                # Ids rise, so that an equal value never displaces one.
                winner = tl.where(top > leading, name, winner)
                leading = tl.maximum(top, leading)
                below += tl.sum(tl.where(left & (found < most), tl.exp(scaled), 0.0), 0)
                equal += tl.sum((left & (found == most)).to(tl.float64), 0)
        place = (row * tl.num_programs(2) + draw) * shares + part
        tl.store(best + place, leading)
        tl.store(owners + place, winner)
        if draw == 0:
            tl.store(rest + (row * shares + part) * 2, below)
            tl.store(rest + (row * shares + part) * 2 + 1, equal)


@triton.jit
def nucleus_winners_kernel(
    logits, tops, status, best, owners, rest, drawn, chosen, log_z, V, share, shares,
    SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """drawn and `chosen`, their logits, [B, N]; log_z [B, 4] (exact_log_z.py) of what is left.

    -1 and NaN for rows REFUSED. Programs are (rows, draws).
    """
    row, draw = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat, lane = row * tl.num_programs(1) + draw, tl.arange(0, SHARES)
    inside = lane < shares
    if tl.load(status + row) == WANTED:
        leading = tl.load(best + flat * shares + lane, mask=inside, other=float("-inf"))
        names = tl.load(owners + flat * shares + lane, mask=inside, other=NO_ID)
        winner = tl.min(tl.where(leading == tl.max(leading, 0), names, NO_ID), 0)
        tl.store(drawn + flat, winner)
        # No id has won where edits left none.
        tl.store(chosen + flat, tl.load(logits + row * V + winner, mask=winner < V, other=0.0))
        if draw == 0:
            pair = rest + (row * shares + lane) * 2
            below = tl.sum(tl.load(pair, mask=inside, other=0.0), 0)
            equal = tl.sum(tl.load(pair + 1, mask=inside, other=0.0), 0)
            steps = BLOCK + REPLACED + (share + BLOCK - 1) // BLOCK + shares
            most = _largest(tops, row, shares, SHARES)
            store_log_z(log_z + 4 * row, most, below + (equal - 1.0), V, steps)
    else:
        tl.store(drawn + flat, -1)
        tl.store(chosen + flat, float("nan"))
        tl.store(log_z + 4 * row + tl.arange(0, 4), tl.full([4], float("nan"), tl.float64))


@triton.jit
def _largest(tops, row, shares, SHARES: tl.constexpr):
    """The largest logit of a row."""
    share = tl.arange(0, SHARES)
    top = tl.load(tops + row * shares + share, mask=share < shares, other=float("-inf"))
    return tl.max(top, 0)


@triton.jit
def _bits(values):
    """uint64 that compare as these float64 do."""
    return ordered64(values).to(tl.uint64, bitcast=True) ^ SIGN
