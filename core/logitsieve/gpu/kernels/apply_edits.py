"""Groups of ids that edits change, once more: what perturb.py stored of them is replaced.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.edits import exact_logits, first_of_group
from logitsieve.gpu.kernels.noise import draw_of
from logitsieve.gpu.kernels.scan_gumbel import factors, group_sums, perturbed
from logitsieve.gpu.kernels.status import PASSED_ON


@triton.jit
def patch_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step, maxima, sums,
    status, V, D, G, draws, GROUP: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G] and sums [B, G]; the programs of a row share its edits.

    AGAIN: as a fallback, for rows that were PASSED_ON.
    """
    row = tl.program_id(0).to(tl.int64)
    start, end, lane = tl.load(offsets + row), tl.load(offsets + row + 1), tl.arange(0, GROUP)
    if AGAIN:
        end = tl.where(tl.load(status + row) == PASSED_ON, end, start)
    factor = tl.load(scale)
    for place in range(start + tl.program_id(1), end, tl.num_programs(1)):
        group, first = first_of_group(edited, place, start, GROUP)
        if first:
            ids = group * GROUP + lane
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, ids < V, D, True
            ).to(tl.float32)
            most, total = group_sums(tl.reshape(found, [1, GROUP, 1]), factor)
            begin = row * (draws + 1) * G + group
            tl.store(maxima + begin, tl.max(tl.ravel(most), 0))
            tl.store(sums + row * G + group, tl.sum(tl.ravel(total), 0))
            store_noisy_group(
                maxima + begin, found, scale, seeds + row, step, group, G, draws, GROUP
            )


@triton.jit
def store_noisy_group(maxima, found, scale, seed, step, group, G, draws, GROUP: tl.constexpr):
    """The largest perturbed of a group's logits, or bounds, `found` [GROUP], for each draw."""
    own, now = tl.load(seed), tl.load(step)
    a, b = factors(tl.load(scale))
    even, odd = tl.split(tl.reshape(found, [GROUP // 2, 2]))
    pair = group * (GROUP // 2) + tl.arange(0, GROUP // 2)
    for draw in range(draws):
        one, other = perturbed(even, odd, own, now, draw_of(step, draw), pair, a, b)
        tl.store(maxima + (draw + 1) * G, tl.max(tl.maximum(one, other), 0))
