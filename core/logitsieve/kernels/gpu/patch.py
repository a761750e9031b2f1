"""Groups of ids that edits change, once more: what perturb.py stored of them is replaced.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.kernels.gpu.edits import exact_logits
from logitsieve.kernels.gpu.perturb import factors, group_sums, perturbed


@triton.jit
def patch_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step, maxima, sums,
    V, D, G, draws, GROUP: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G] and sums [B, G]; the programs of a row share its edits."""
    row = tl.program_id(0).to(tl.int64)
    start, lane = tl.load(offsets + row), tl.arange(0, GROUP)
    seed, now, factor = tl.load(seeds + row), tl.load(step), tl.load(scale)
    a, b = factors(factor)
    for place in range(start + tl.program_id(1), tl.load(offsets + row + 1), tl.num_programs(1)):
        group = tl.load(edited + place) // GROUP
        before = tl.load(edited + place - 1, mask=place > start, other=-1)
        if (before < 0) | (before // GROUP != group):
            ids = group * GROUP + lane
            found = exact_logits(
                weight, bias, hidden, offsets, edited, instead, row, ids, ids < V, D, True
            ).to(tl.float32)
            most, total = group_sums(tl.reshape(found, [1, GROUP, 1]), factor)
            begin = row * (draws + 1) * G + group
            tl.store(maxima + begin, tl.max(tl.ravel(most), 0))
            tl.store(sums + row * G + group, tl.sum(tl.ravel(total), 0))
            even, odd = tl.split(tl.reshape(found, [GROUP // 2, 2]))
            pair = group * (GROUP // 2) + tl.arange(0, GROUP // 2)
            for draw in range(draws):
                one, other = perturbed(even, odd, seed, now, draw, pair, a, b)
                tl.store(maxima + begin + (draw + 1) * G, tl.max(tl.maximum(one, other), 0))
