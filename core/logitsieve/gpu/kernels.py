"""Triton kernels for what PyTorch lacks: exact logits of given ids, and Gumbel noise."""

import triton
import triton.language as tl


@triton.jit
def exact_logits_kernel(
    weight, bias, hidden_states, ids, logits, D, M, row_stride, id_stride,
    LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill logits [B, M]; programs take blocks of a row, then rows."""
    program, blocks = tl.program_id(0), tl.cdiv(M, BLOCK)
    row, place = (program // blocks).to(tl.int64), program % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = place < M
    named = tl.load(ids + row * row_stride + place * id_stride, mask=inside, other=-1)
    known, lane = named >= 0, tl.arange(0, LANES)
    total = tl.zeros([BLOCK, LANES], tl.float64)
    starts = weight + named.to(tl.int64)[:, None] * D
    for d in tl.range(0, D, LANES, loop_unroll_factor=8):
        within = d + lane < D
        mask = known[:, None] & within[None, :]
        w = widened(tl.load(starts + (d + lane)[None, :], mask=mask, other=0))
        h = tl.load(hidden_states + row * D + d + lane, mask=within, other=0.0)
        total += w.to(tl.float64) * h.to(tl.float64)[None, :]
    found = pair_sum(total) + tl.load(bias + named, mask=known, other=0.0).to(tl.float64)
    tl.store(logits + row * M + place, tl.where(known, found, float("-inf")), mask=inside)


@triton.jit
def widened(values):
    """Return weights as float32; int16 are the bits of bfloat16."""
    if values.dtype == tl.int16:
        return (values.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def pair_sum(total):
    eight, four, two = halved(total), 0, 0
    four = halved(eight)
    two = halved(four)
    a, b = tl.split(two)
    return a + b


@triton.jit
def halved(total):
    a, b = tl.split(tl.reshape(total, [total.shape[0], total.shape[1] // 2, 2]))
    return a + b


@triton.jit
def gumbel_kernel(
    seeds, counters, noise, N, V, STREAM: tl.constexpr, BLOCK: tl.constexpr, IDS: tl.constexpr
):
    """Fill noise [B, N, V]; programs take blocks of V, then draws.

    counters [4]: the low and the high word of the step, the first draw, the first id.
    """
    program, blocks = tl.program_id(0), tl.cdiv(V, IDS)
    pair, place = (program // blocks).to(tl.int64), program % blocks * IDS + tl.arange(0, IDS)
    seed, draw = tl.load(seeds + pair // N), (tl.load(counters + 2) + pair % N).to(tl.uint32)
    step_low, step_high = tl.load(counters).to(tl.uint32), tl.load(counters + 1).to(tl.uint32)
    ids = tl.load(counters + 3) + place
    low, high = words(seed, step_low, step_high, draw | STREAM, ids // BLOCK)
    least, leader = exponential(low, high) * (1.0 / BLOCK), (low & (BLOCK - 1)).to(tl.int64)
    more = exponential(*words(seed, step_low, step_high, draw, ids))
    found = -tl.log(tl.where(ids % BLOCK == leader, least, least + more))
    tl.store(noise + pair * V + place, found, mask=place < V)


@triton.jit
def words(seed, step_low, step_high, draw, places):
    """Return the two words of places: ids, or blocks in the stream LEAST_NOISE."""
    a, b, c, d = tl.philox(seed, (places >> 1).to(tl.uint32), draw, step_low, step_high)
    odd = (places & 1) == 1
    return tl.where(odd, c, a), tl.where(odd, d, b)


@triton.jit
def exponential(low, high):
    """Return -log u, with the exact u in (0, 1) of two words."""
    u = high.to(tl.float64) * 2.0**-32 + ((low >> 12).to(tl.float64) * 2.0**-52 + 2.0**-53)
    return -tl.log(u)
