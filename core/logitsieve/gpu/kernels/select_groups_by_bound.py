"""The groups of ids whose perturbed bounds reach a perturbed logit that is known exactly.

The ids of the group with the largest perturbed bound are computed. The winner's perturbed logit is
not below the best of theirs, q, and its perturbed bound, u being a bound but for the MARGIN of
describe.py, is not below q - a MARGIN - b NOISE_ERROR but for what a few float32 operations round
off: less than 2^-22 of it and 2^-16 b (near.py). So the winner is in a group that is listed.

Slot 0 finds the largest logit that way. It lists, too, what weighs more than e^-HEAVY of all by its
bound, so that log Z is closer: at most e^HEAVY ids.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws, C
groups listed at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.edits import exact_logits
from logitsieve.gpu.kernels.encode_query import FACTORS, MARGIN
from logitsieve.gpu.kernels.noise import NOISE_ERROR, draw_of, noise64
from logitsieve.gpu.kernels.scan_gumbel import factors
from logitsieve.gpu.kernels.status import PASSED_ON, WANTED

HEAVY = tl.constexpr(5.5)  # nats
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32: what is below is banned


@triton.jit
def reach_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step, maxima, sums, terms,
    listed, counts, cuts, status, V, D, G,
    C: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, EDITS: tl.constexpr,
):  # fmt: skip
    """listed [B, N + 1, C], counts and cuts [B, N + 1], of maxima [B, N + 1, G]; programs are them.

    `terms` [B, FACTORS] are the rows' factors. A row with too much to list is PASSED_ON.
    """
    row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flat = row * tl.num_programs(1) + slot
    tl.store(counts + flat, 0)
    if tl.load(status + row) == WANTED:
        place, factor = tl.arange(0, GROUPS), tl.load(scale)
        values = tl.load(maxima + flat * G + place, mask=place < G, other=float("-inf"))
        ids = tl.argmax(values, 0) * GROUP + tl.arange(0, GROUP)
        found = exact_logits(
            weight, bias, hidden, offsets, edited, instead, row, ids, ids < V, D, EDITS
        )
        error = tl.load(terms + row * FACTORS + MARGIN)
        if slot > 0:
            noise = noise64(tl.load(seeds + row), tl.load(step), draw_of(step, slot - 1), ids)
            found = found * tl.minimum(factor, 1.0) + noise * tl.minimum(1.0 / factor, 1.0)
            a, b = factors(factor)
            error = error * a + (NOISE_ERROR + 2.0**-16) * b
        best = tl.max(found, 0)
        cut = (best - 1.001 * error - 2.0**-20 * tl.abs(best)).to(tl.float32)
        if slot == 0:
            light = _light(values, sums + row * 3 * G + place, place < G, factor)
            cut = tl.minimum(cut, light)
        cut = tl.maximum(cut, LOWEST)
        chosen = values >= cut
        count = tl.sum(chosen.to(tl.int32), 0)
        slots = tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(listed + flat * C + slots, place, mask=chosen & (slots < C))
        tl.store(counts + flat, tl.where(count > C, 0, count))
        tl.store(cuts + flat, cut)
        if count > C:
            tl.store(status + row, PASSED_ON)


@triton.jit
def _light(values, sums, inside, scale):
    """The bound below which an id weighs less than e^-HEAVY of all by their bounds."""
    best, weights = tl.max(values, 0), tl.load(sums, mask=inside, other=0.0)
    apart = (values - best) * scale.to(tl.float32)
    total = tl.sum(tl.where(weights > 0.0, weights * tl.exp(apart), 0.0), 0).to(tl.float64)
    return (best + (tl.log(total) - HEAVY) / scale).to(tl.float32)
