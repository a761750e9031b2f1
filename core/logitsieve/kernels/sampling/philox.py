"""Counter-based random numbers: a draw's numbers depend only on its key and place.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3). The
key is a row's seed; the four words of the counter are

    0  place: an id or a block of ids, halved, or the number of the trial
    1  draw, with the stream (below) in the two highest bits
    2  step, low word
    3  step, high word

The result is two uint64: words 0 and 1, and words 2 and 3, the lower word first.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline

ROUNDS = 10
FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
WORD, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

# Streams: an id; a block of ids; the choice of ids outside a head's own, and their noise.
NOISE, LEAST, OUTSIDE = np.uint64(0), np.uint64(1 << 30), np.uint64(2 << 30)
_LOW_BITS, _HALF_STEP = np.uint64(12), 2.0**-53


@inline
def random_bits(seed, step, draw, place):
    """Return two uint64 for a place of a draw of a step, all of them uint64."""
    key0, key1 = seed & WORD, seed >> HALF
    c0, c1, c2, c3 = place & WORD, draw & WORD, step & WORD, step >> HALF
    for _ in range(ROUNDS):
        low, high = FACTORS[0] * c0, FACTORS[1] * c2
        c0, c1, c2, c3 = (
            (high >> HALF) ^ c1 ^ key0,
            high & WORD,
            (low >> HALF) ^ c3 ^ key1,
            low & WORD,
        )
        key0, key1 = (key0 + WEYL[0]) & WORD, (key1 + WEYL[1]) & WORD
    return c0 | (c1 << HALF), c2 | (c3 << HALF)


@inline
def bits_of(seed, step, draw, place):
    """Return one of a pair's two uint64: even places have words 0 and 1, odd ones 2 and 3."""
    even, odd = random_bits(seed, step, draw, np.uint64(place >> 1))
    return odd if place & 1 else even


@inline
def uniform(bits):
    """Return a float64 in (0, 1), the middle of one of 2^52 equal parts.

    So events less likely than about 2^-52 never happen.
    """
    return float(bits >> _LOW_BITS) * 2.0**-52 + _HALF_STEP
