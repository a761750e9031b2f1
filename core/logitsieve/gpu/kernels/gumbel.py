"""Gumbel noise of ids, by the counters, bits and numbers of sampling/philox.py; noisy logits.

The noise of an id is -log E, E being its exponential number. Of the BLOCK numbers of neighbours the
least comes from the stream LEAST, with the id that has it, the block's leader. The others are the
least and a number of their own each, from the stream NOISE. So one number bounds the noise of a
whole block, and is that of its leader.

Words 0 and 1 of the four are the bits of the even id, or block, of a pair, words 2 and 3 those of
the odd one, the lower word first. float32 noise chooses candidates. Near u = 1 it needs 1 - u,
which is taken from the complement of the bits, and log(1 - v) = v log(w) / (w - 1), w being 1 - v
rounded (Goldberg 1991, What Every Computer Scientist Should Know, theorem 4): so -log u has a small
relative error wherever u lies, and so has a sum of two of them.

A draw from softmax(scale x) takes the id with the largest scale x + G, G being Gumbel noise. Here
that is a x + b G, a and b being scale and 1, or 1 and 1 / scale where scale is above 1: the order
is the same, and nothing overflows. One pass over W keeps two numbers of each group and draw, from
one random number for each block. No noisy logit of the group is above the first, the largest sum of
a block's largest logit and its leader's noise. Some leader's noisy logit reaches the second, the
largest sum of the leader's noise and a logit that is no larger than its own: the block's largest,
if that is the leader's, or the least. Groups that edits change are computed once more.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of GROUP ids, N draws. Slot 0
of the N + 1 of a row holds the largest logits, slot n + 1 the bounds of draw n.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.exact_logits import exact_logits, first_of_group
from logitsieve.gpu.kernels.scan import tile_logits
from logitsieve.gpu.kernels.status import PASSED_ON, any_of

BLOCK = tl.constexpr(16)  # ids whose least number is drawn together
LEAST = tl.constexpr(1 << 30)  # the stream of it, in the highest bits of a draw

# Of float32 noise. With logarithms within 2^-21 of themselves -log u, and a sum of two of them, are
# off by less than 17 2^-24 of themselves, which moves their logarithm by as much; that is 40 at
# most, and 2^-21 of it is less than 2^-15.6.
NOISE_ERROR = tl.constexpr(2.0**-15)


@triton.jit
def random_words(seed, step, draw, pair):
    """Four uint32 of places 2 pair and 2 pair + 1; `seed` and `step` are uint64 held as int64."""
    low, high = (step & 0xFFFFFFFF).to(tl.uint32), ((step >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, pair.to(tl.uint32), draw, low, high)


@triton.jit
def draw_of(step, draw):
    """The number that a plan's draw has in its request: step [2] holds that of the first, too."""
    return (tl.load(step + 1) + draw).to(tl.uint32)


@triton.jit
def words_of(seed, step, draw, places):
    """The lower and the higher word of places: ids, or blocks of the stream LEAST."""
    a, b, c, d = random_words(seed, step, draw, places >> 1)
    odd = (places & 1) == 1
    return tl.where(odd, c, a), tl.where(odd, d, b)


@triton.jit
def exponential32(low, high):
    """float32 -log u of two words, with a small relative error."""
    u = high.to(tl.float32) * 2.0**-32 + ((low >> 12).to(tl.float32) * 2.0**-52 + 2.0**-53)
    rest = ((~low) >> 12).to(tl.float32) * 2.0**-52 + 2.0**-53
    v = (~high).to(tl.float32) * 2.0**-32 + rest
    near_one = v < 0.5
    w = tl.where(near_one, 1.0 - v, u)
    log_w = tl.log(w)
    corrected = tl.where(w < 1.0, v * log_w / (w - 1.0), v)
    return tl.where(near_one, corrected, -log_w)


@triton.jit
def exponential64(low, high):
    """float64 -log u of two words: that of sampling/gumbel.py but for what log rounds."""
    # In (0, 1), and exact.
    u = high.to(tl.float64) * 2.0**-32 + ((low >> 12).to(tl.float64) * 2.0**-52 + 2.0**-53)
    return -tl.log(u)


@triton.jit
def leader_of(seed, step, draw, blocks):
    """The float32 exponential number of blocks' leaders, and their places in the blocks."""
    low, high = words_of(seed, step, draw | LEAST, blocks)
    return exponential32(low, high) * (1.0 / BLOCK), (low & (BLOCK - 1)).to(tl.int32)


@triton.jit
def noise32(seed, step, draw, ids):
    """float32 Gumbel noise of ids, within NOISE_ERROR."""
    least, place = leader_of(seed, step, draw, ids // BLOCK)
    more = exponential32(*words_of(seed, step, draw, ids))
    return -tl.log(tl.where(ids % BLOCK == place, least, least + more))


@triton.jit
def noise64(seed, step, draw, ids):
    """float64 Gumbel noise of ids: that of the host but for what logarithms round."""
    low, high = words_of(seed, step, draw | LEAST, ids // BLOCK)
    least, place = exponential64(low, high) * (1.0 / BLOCK), (low & (BLOCK - 1)).to(tl.int32)
    more = exponential64(*words_of(seed, step, draw, ids))
    return -tl.log(tl.where(ids % BLOCK == place, least, least + more))


@triton.jit
def scan_gumbel_kernel(
    weight, bias, hidden, scale, seeds, step, maxima, leaders, sums, status, B, V, D, G, draws,
    GROUP: tl.constexpr, FALLBACK: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """maxima [B, N + 1, G], leaders [B, N, G]; sums [B, G] of e^{scale (x - the group's largest)}.

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
        store_noisy(maxima, leaders, logits, scale, seeds, step, tile, rows, B, G, draws, GROUP)


@triton.jit
def store_noisy(
    maxima, leaders, logits, scale, seeds, step, tile, rows, B, G, draws, GROUP: tl.constexpr
):  # fmt: skip
    """Slots 1 to N of maxima [B, N + 1, G], and leaders [B, N, G], of a tile [ids, rows].

    `logits` may be upper bounds of them; `tile` counts tiles of as many ids.
    """
    count: tl.constexpr = logits.shape[0] // GROUP
    blocks: tl.constexpr = logits.shape[0] // BLOCK
    width: tl.constexpr = logits.shape[1]
    shape: tl.constexpr = [count, GROUP // BLOCK, width]
    groups = tile * count + tl.arange(0, count)
    real, wide = (groups < G)[:, None] & (rows < B)[None, :], rows.to(tl.int64)[None, :]
    seed, now = tl.load(seeds + rows, mask=rows < B, other=0)[None, :], tl.load(step)
    a, b = factors(tl.load(scale))
    each, lane = tl.reshape(logits, [blocks, BLOCK, width]), tl.arange(0, BLOCK)[None, :, None]
    most, least = tl.max(each, 1), tl.min(each, 1)
    first = tl.min(tl.where(each == tl.expand_dims(most, 1), lane, BLOCK), 1)
    block = (tile * blocks + tl.arange(0, blocks))[:, None]
    for draw in range(draws):
        number, place = leader_of(seed, now, draw_of(step, draw), block)
        noise = -tl.log(number) * b
        led = tl.where(place == first, most, least) * a + noise
        bounds = tl.max(tl.reshape(most * a + noise, shape), 1)
        best = tl.max(tl.reshape(led, shape), 1)
        start = (wide * (draws + 1) + draw + 1) * G + groups[:, None]
        tl.store(maxima + start, bounds, mask=real)
        tl.store(leaders + (wide * draws + draw) * G + groups[:, None], best, mask=real)


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
def apply_edits_kernel(
    weight, bias, hidden, offsets, edited, instead, scale, seeds, step, maxima, leaders, sums,
    status, V, D, G, draws, GROUP: tl.constexpr, FALLBACK: tl.constexpr,
):  # fmt: skip
    """maxima, leaders and sums of scan_gumbel_kernel; the programs of a row share its edits.

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
            alone = tl.reshape(found, [GROUP, 1])
            most, total = group_sums(tl.expand_dims(alone, 0), factor)
            tl.store(maxima + row * (draws + 1) * G + group, tl.max(tl.ravel(most), 0))
            tl.store(sums + row * G + group, tl.sum(tl.ravel(total), 0))
            store_noisy(
                maxima, leaders, alone, scale, seeds, step, group,
                row.to(tl.int32) + tl.arange(0, 1), tl.num_programs(0), G, draws, GROUP,
            )  # fmt: skip
