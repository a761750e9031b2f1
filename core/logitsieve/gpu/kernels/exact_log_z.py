"""log Z in float64 with a computed interval: the fields of kernels/sampling/log_z.py.

Each program adds up e^{scale (x - top)} over its share of all ids, top being the share's largest
logit, which is left out of its own sum (the first, if several are equal). The shares' sums are then
made relative to the largest top of all, so that S, the sum of all others, and rest = log(1 + S)
keep their relative precision where S is small.

exp and log in float64 are taken to be within 2 units in the last place: libdevice documents 1, and
numpy, which the interpreter calls, is within 1. As parts of S, the errors are

    SPREAD  an exponent is rounded twice, to 2^-53 of itself each time. Those that a logit goes
            through, its own and one for each replacement of the top, add up to 708 at most, as what
            is beyond underflows: 708 2^-52, and 2^-51 of its exponential
    STEP    of each addition: of a block's ids, in any order, of blocks, of shares. A replacement of
            the top, (S + 1) e^{...}, takes REPLACED steps: the exponential and two roundings
    TINY    of 1 an id, which is what underflows at most

log1p is log(u) x / (u - 1), u being 1 + x rounded (Goldberg 1991, theorem 4): off by 2^-51 of the
logarithm and by 2^-53 each of u, its difference, the quotient and the product, under LOG_ERROR.

Shape letters: B rows of hidden, V vocabulary, D hidden size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.exact_logits import exact_logits
from logitsieve.gpu.kernels.status import NO_ID, REFUSED

SPREAD, STEP, REPLACED = tl.constexpr(2.0**-41), tl.constexpr(2.0**-52), tl.constexpr(4)
TINY = tl.constexpr(2.0**-1000)
LOG_ERROR = tl.constexpr(2.0**-49)


@triton.jit
def dense_sums_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, marks, tops, totals,
    V, D, slots, share,
    MARK: tl.constexpr, BLOCK: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """tops and totals [B, shares] of rows whose first of marks [B, slots] is MARK.

    Largest logits of shares, and the sums of all their others relative to them.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(marks + row * slots) == MARK:
        factor = tl.load(scale)
        most, total = tl.full([], float("-inf"), tl.float64), tl.full([], 0.0, tl.float64)
        end = tl.minimum(part * share + share, V)
        for start in range(part * share, end, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, ids < end, D, EDITS
            )
            most, before = tl.maximum(most, tl.max(found, 0)), most
            least, replaced = tl.where(most > float("-inf"), most, 0.0), most > before
            total = tl.where(replaced, (total + 1.0) * tl.exp((before - least) * factor), total)
            first = tl.where(replaced, tl.min(tl.where(found == most, ids, NO_ID), 0), NO_ID)
            others = tl.where(ids == first, float("-inf"), found)
            total += tl.sum(tl.exp((others - least) * factor), 0)
        place = row * tl.num_programs(1) + part
        tl.store(tops + place, most)
        tl.store(totals + place, total)


@triton.jit
def exact_log_z_kernel(
    scale, tops, totals, status, log_z, V, shares, each,
    SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """log_z [B, 4] of tops and totals [B, shares] of `each` ids; NaN for rows REFUSED."""
    row, share = tl.program_id(0).to(tl.int64), tl.arange(0, SHARES)
    if tl.load(status + row) == REFUSED:
        _store(log_z + 4 * row, float("nan"), float("nan"), float("nan"), float("nan"))
    else:
        inside, place = share < shares, row * shares + share
        top = tl.load(tops + place, mask=inside, other=float("-inf"))
        sums, most = tl.load(totals + place, mask=inside, other=0.0), tl.max(top, 0)
        least = tl.where(most > float("-inf"), most, 0.0)
        first = tl.min(tl.where(top == most, share, SHARES), 0)
        weights = tl.exp((top - least) * tl.load(scale))
        total = tl.sum(sums * weights + tl.where(share == first, 0.0, weights), 0)
        blocks = (each + BLOCK - 1) // BLOCK + 1  # the shares are one more
        store_log_z(log_z + 4 * row, most, total, V, BLOCK + REPLACED * blocks + shares)


@triton.jit
def store_log_z(log_z, top, total, rows, steps):
    """The fields of `rows` ids whose largest logit is `top`, and S = `total` after that many steps.

    As on the host, all is -inf but a top of 0 where no id counts.
    """
    one = tl.full([], 1.0, tl.float64)
    spread, tiny = SPREAD + one * steps * STEP, one * (rows - 1) * TINY
    low = _log1p(tl.maximum(total * (1.0 - spread) - tiny, 0.0)) * (1.0 - LOG_ERROR)
    high = _log1p(total * (1.0 + spread) + tiny) * (1.0 + LOG_ERROR)
    none, nothing = top == float("-inf"), float("-inf")
    _store(
        log_z,
        tl.where(none, 0.0, top),
        tl.where(none, nothing, _log1p(total)),
        tl.where(none, nothing, low),
        tl.where(none, nothing, high),
    )


@triton.jit
def _log1p(x):
    u = 1.0 + x
    return tl.where(u > 1.0, tl.log(u) * (x / tl.where(u > 1.0, u - 1.0, 1.0)), x)


@triton.jit
def _store(log_z, top, value, low, high):
    tl.store(log_z, top)
    tl.store(log_z + 1, value)
    tl.store(log_z + 2, low)
    tl.store(log_z + 3, high)
