"""The floor of draws: a row with a lower logit loses, or wins by noise that few rows have.

With M the largest x_i / T + G_i so far, a row with a logit below T (M - g) needs noise above g to
win. Rows with such noise are found by their noise alone (lists.py). min-p raises the floor, too.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.sampling.gumbel import noise_of
from logitsieve.kernels.simd.pointers import as_uint64, nowhere, shift
from logitsieve.kernels.topk.queries import FLOOR, SIZE, STATE

MOST_NOISE = 39.6  # no noise is larger

# `seeds` are of all rows of hidden; query 0 is row `first`. The temperature is 1 / scale. A row
# below the floor needs noise above `needed`. `share` is the log of min-p less a spare, or -inf.
Noise = namedtuple("Noise", "seeds first step draws first_id scale needed share")


@inline
def no_noise():
    zero, least = np.int64(0), -np.inf
    return Noise(as_uint64(nowhere()), zero, np.uint64(0), zero, zero, 1.0, np.inf, least)


@inline_once
def raise_floor(queries, q, noise):
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
