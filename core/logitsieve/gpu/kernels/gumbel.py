"""Gumbel noise of ids, by the counters, bits and numbers of sampling/philox.py; noisy logits.

Words 0 and 1 of the four are the bits of the even id of a pair, words 2 and 3 those of the odd one,
the lower word first. float32 noise chooses candidates. Near u = 1 it needs 1 - u,
which is taken from the complement of the bits, and log(1 - v) = v log(w) / (w - 1), w being 1 - v
rounded (Goldberg 1991, What Every Computer Scientist Should Know, theorem 4): so -log u has a small
relative error wherever u lies.

A draw from softmax(scale x) takes the id with the largest scale x + G, G being Gumbel noise. Here
that is a x + b G, a and b being scale and 1, or 1 and 1 / scale where scale is above 1: the order
is the same, and nothing overflows. One pass over W keeps the largest of each group and draw.
Groups that edits change are computed once more.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws. Slot 0
of the N + 1 of a row holds logits without noise, slot n + 1 those of draw n.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.exact_logits import exact_logits, first_of_group
from logitsieve.gpu.kernels.scan import tile_logits
from logitsieve.gpu.kernels.status import PASSED_ON, any_of

# Of gumbel32. With logarithms within 4 units in the last place -log u is off by less than 2^-20 of
# itself, which moves its logarithm by as much; that is 37 at most, rounded within 4 2^-19.
NOISE_ERROR = tl.constexpr(2.0**-15)


@triton.jit
def random_words(seed, step, draw, pair):
    """Four uint32 of the ids 2 pair and 2 pair + 1; `seed` and `step` are uint64 held as int64."""
    low, high = (step & 0xFFFFFFFF).to(tl.uint32), ((step >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, pair.to(tl.uint32), draw, low, high)


@triton.jit
def draw_of(step, draw):
    """The number that a plan's draw has in its request: step [2] holds that of the first, too."""
    return (tl.load(step + 1) + draw).to(tl.uint32)


@triton.jit
def gumbel32(low, high):
    """float32 Gumbel noise of two words, within NOISE_ERROR."""
    u = high.to(tl.float32) * 2.0**-32 + ((low >> 12).to(tl.float32) * 2.0**-52 + 2.0**-53)
    rest = ((~low) >> 12).to(tl.float32) * 2.0**-52 + 2.0**-53
    v = (~high).to(tl.float32) * 2.0**-32 + rest
    near_one = v < 0.5
    w = tl.where(near_one, 1.0 - v, u)
    log_w = tl.log(w)
    corrected = tl.where(w < 1.0, v * log_w / (w - 1.0), v)
    return -tl.log(tl.where(near_one, corrected, -log_w))


@triton.jit
def gumbel64(low, high):
    """float64 Gumbel noise of two words: that of sampling/gumbel.py but for what log rounds."""
    # In (0, 1), and exact.
    u = high.to(tl.float64) * 2.0**-32 + ((low >> 12).to(tl.float64) * 2.0**-52 + 2.0**-53)
    return -tl.log(-tl.log(u))


@triton.jit
def noise64(seed, step, draw, ids):
    """float64 Gumbel noise of ids."""
    a, b, c, d = random_words(seed, step, draw, ids >> 1)
    odd = (ids & 1) == 1
    return gumbel64(tl.where(odd, c, a), tl.where(odd, d, b))


@triton.jit
def scan_gumbel_kernel(
    weight, bias, hidden, scale, seeds, step, maxima, sums, status, B, V, D, G, draws,
    GROUP: tl.constexpr, FALLBACK: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G]; sums [B, G] of e^{scale (x - the group's largest)}.

    Programs are (tiles of BLOCK_V ids, BLOCK_B rows). seeds [B], step [1] int64, scale [1] float64.
    FALLBACK: blocks without a row that was PASSED_ON are left out.
    """
    tile, block, wanted = tl.program_id(0), tl.program_id(1), True
    ids, rows = tile * BLOCK_V + tl.arange(0, BLOCK_V), block * BLOCK_B + tl.arange(0, BLOCK_B)
    if FALLBACK:
        wanted = any_of(status, rows, B, PASSED_ON)
    if wanted:
        logits = tile_logits(weight, bias, hidden, ids, rows, B, V, D, BLOCK_D)
        count: tl.constexpr = BLOCK_V // GROUP
        groups, wide = tile * count + tl.arange(0, count), rows.to(tl.int64)[None, :]
        real = (groups < G)[:, None] & (rows < B)[None, :]
        most, total = group_sums(tl.reshape(logits, [count, GROUP, BLOCK_B]), tl.load(scale))
        tl.store(maxima + wide * (draws + 1) * G + groups[:, None], most, mask=real)
        tl.store(sums + wide * G + groups[:, None], total, mask=real)
        store_noisy(maxima, logits, scale, seeds, step, tile, rows, B, G, draws, GROUP)


@triton.jit
def store_noisy(
    maxima, logits, scale, seeds, step, tile, rows, B, G, draws, GROUP: tl.constexpr
):  # fmt: skip
    """maxima [B, N + 1, G] of slots 1 to N: of logits, or bounds, of a tile [ids, rows]."""
    count: tl.constexpr = logits.shape[0] // GROUP
    pairs: tl.constexpr = logits.shape[0] // 2
    width: tl.constexpr = logits.shape[1]
    groups = tile * count + tl.arange(0, count)
    starts = maxima + rows.to(tl.int64)[None, :] * (draws + 1) * G + groups[:, None]
    real = (groups < G)[:, None] & (rows < B)[None, :]
    seed, now = tl.load(seeds + rows, mask=rows < B, other=0)[None, :], tl.load(step)
    pair = (tile * pairs + tl.arange(0, pairs))[:, None]
    a, b = factors(tl.load(scale))
    even, odd = tl.split(tl.permute(tl.reshape(logits, [pairs, 2, width]), (0, 2, 1)))
    for draw in range(draws):
        number = draw_of(step, draw)
        most = tl.maximum(*with_noise(even, odd, seed, now, number, pair, a, b))
        most = tl.max(tl.reshape(most, [count, GROUP // 2, width]), 1)
        tl.store(starts + (draw + 1) * G, most, mask=real)


@triton.jit
def group_sums(logits, scale):
    """The largest of logits [groups, ids, rows] of each group, and the sum relative to it."""
    most = tl.max(logits, 1)
    # Nothing is left of a group that is banned altogether.
    least = tl.where(most > float("-inf"), most, 0.0)
    apart = (logits - tl.expand_dims(least, 1)) * scale.to(tl.float32)
    return most, tl.sum(tl.exp(apart), 1)


@triton.jit
def factors(scale):
    """float32 a and b: a x + b G is scale x + G, or that over scale."""
    return tl.minimum(scale, 1.0).to(tl.float32), tl.minimum(1.0 / scale, 1.0).to(tl.float32)


@triton.jit
def with_noise(even, odd, seed, step, draw, pair, a, b):
    """float32 logits of even and odd ids with their noise; select_groups.py bounds their error."""
    low, high, other_low, other_high = random_words(seed, step, draw, pair)
    return even * a + gumbel32(low, high) * b, odd * a + gumbel32(other_low, other_high) * b


@triton.jit
def apply_edits_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step, maxima, sums,
    status, V, D, G, draws, GROUP: tl.constexpr, FALLBACK: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G] and sums [B, G]; the programs of a row share its edits.

    FALLBACK: for rows that were PASSED_ON.
    """
    row = tl.program_id(0).to(tl.int64)
    start, end, lane = tl.load(offsets + row), tl.load(offsets + row + 1), tl.arange(0, GROUP)
    if FALLBACK:
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
        one, other = with_noise(even, odd, own, now, draw_of(step, draw), pair, a, b)
        tl.store(maxima + (draw + 1) * G, tl.max(tl.maximum(one, other), 0))
