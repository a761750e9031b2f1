"""The least logit that draws need: a row below it loses, or wins by noise that few rows have.

With M the largest x_i / T + G_i of the rows computed so far, a row below T (M - g) needs noise
above g to win. Rows with such noise are found by it alone (lists.py). And min-p drops all rows
below a share of the best.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.sampling.gumbel import noise_of
from logitsieve.kernels.simd.pointers import as_uint64, nowhere, shift
from logitsieve.kernels.topk.queries import FLOOR, SIZE, STATE

MOST_NOISE = 39.6  # above the largest

# Seeds of all rows of hidden, and the place of the first one here; how many draws at a temperature
# of 1 / scale; the noise that the others need at least, and log of min-p less a spare, or -inf.
Noise = namedtuple("Noise", "seeds first step draws first_id scale needed share")


@inline
def no_noise():
    zero, least = np.int64(0), -np.inf
    return Noise(as_uint64(nowhere()), zero, np.uint64(0), zero, zero, 1.0, np.inf, least)


@inline_once
def raise_floor(queries, q, noise):
    """Raise FLOOR of a query, as far as the logits of its answers allow."""
    if noise.draws == 0 and noise.share == -np.inf:
        return
    state, place = shift(queries.states, STATE * q), q * queries.limit
    values, kept, size = shift(queries.values, place), shift(queries.kept, place), int(state[SIZE])
    if size == 0:  # a mask forbids all rows so far
        return
    largest, least = values[0], np.inf
    for i in range(size):
        largest = max(largest, values[i])
    for draw in range(noise.draws):
        most = -np.inf
        for i in range(size):
            scaled = (values[i] - largest) * noise.scale
            if scaled + MOST_NOISE > most:
                row, seed = noise.first_id + np.int64(kept[i]), noise.seeds[noise.first + q]
                most = max(most, scaled + noise_of(seed, noise.step, np.uint64(draw), row))
        least = min(least, most)
    share = max(noise.share, least - noise.needed) if noise.draws > 0 else noise.share
    state[FLOOR] = max(state[FLOOR], largest + share / noise.scale)
