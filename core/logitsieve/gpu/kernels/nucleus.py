"""Draws from a list of logits, best first, after top-p and min-p have cut it.

The arithmetic is that of sampling/nucleus.py over lists that hold all that there is to choose from,
operation by operation: sums in the order of the list, in float64. (Only exp and log may round
their last bit differently.)

Shape letters: B rows of hidden, K ids of a list, N draws.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.noise import random_words, uniform64

TRIALS = tl.constexpr(1 << 30)  # the stream of sampling/philox.py


@triton.jit
def list_sample_kernel(
    ids, logits, seeds, step, filters, drawn, log_probs, log_z, K, N, BLOCK: tl.constexpr
):
    """drawn [B, N] int32 and log_probs [B, N] float32; log_z [B] float32 of what remains.

    Of ids and logits [B, K], whose logits are NaN in rows that cannot be answered; `filters` are
    1 / temperature, top-p and min-p. Programs are (rows, blocks of N).
    """
    row = tl.program_id(0).to(tl.int64)
    own, inverse = logits + row * K, tl.load(filters)
    top_p, min_p = tl.load(filters + 1), tl.load(filters + 2)
    most = tl.load(own) * inverse
    whole = tl.full([], 0.0, tl.float64)
    for i in range(K):
        whole += tl.exp(tl.load(own + i) * inverse - most)
    reach = tl.where(top_p < 1.0, whole * top_p, float("inf"))
    total, length, wanted = tl.full([], 0.0, tl.float64), tl.full([], 0, tl.int32), most == most
    for i in range(K):
        weight = tl.exp(tl.load(own + i) * inverse - most)
        wanted = wanted & (weight >= min_p)
        total += tl.where(wanted, weight, 0.0)
        length += wanted.to(tl.int32)
        wanted = wanted & (total < reach)
    draw = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    low, high, _, _ = random_words(tl.load(seeds + row), tl.load(step), draw | TRIALS, draw * 0)
    target, place = uniform64(low, high) * total, draw * 0
    below = tl.full([], 0.0, tl.float64)
    for i in range(length):
        below += tl.exp(tl.load(own + i) * inverse - most)
        place += (below <= target).to(tl.int32)
    place = tl.maximum(tl.minimum(place, length - 1), 0)
    chosen, flat, inside = tl.load(own + place) * inverse, row * N + draw, draw < N
    tl.store(drawn + flat, tl.load(ids + row * K + place), mask=inside)
    tl.store(log_probs + flat, (chosen - most - tl.log(total)).to(tl.float32), mask=inside)
    tl.store(log_z + row, (most + tl.log(total)).to(tl.float32))
