"""Counter-based random numbers: a draw's numbers depend only on its key and place.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3). The
key is a row's seed; the words of the counter are

    0     place: an id or a block of ids, halved, or the number of a trial
    1     draw, with the stream (below) in the two highest bits
    2, 3  step

Of two neighbouring places the even one gets words 0 and 1 of the result, the odd one words 2, 3.
"""

import numpy as np
from llvmlite import ir
from numba import types

from logitsieve.kernels.compile import emits, inline
from logitsieve.kernels.simd.lanes import FLOATS, INTEGERS, LANES, LANES32, constant, spread

ROUNDS = 10
FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
WORD, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

# Streams: noise of an id; noise of a block; choice and noise of ids outside a head's candidates.
NOISE, LEAST, OUTSIDE = np.uint64(0), np.uint64(1 << 30), np.uint64(2 << 30)
_LOW_BITS, _HALF_STEP = np.uint64(12), 2.0**-53


@inline
def random_bits(seed, step, draw, place):
    key0, key1 = seed & WORD, seed >> HALF
    c0, c1, c2, c3 = place & WORD, draw & WORD, step & WORD, step >> HALF
    for _ in range(ROUNDS):
        low, high = FACTORS[0] * c0, FACTORS[1] * c2
        c0, c1, c2, c3 = (
            (high >> HALF) ^ c1 ^ key0, high & WORD, (low >> HALF) ^ c3 ^ key1, low & WORD,
        )  # fmt: skip
        key0, key1 = (key0 + WEYL[0]) & WORD, (key1 + WEYL[1]) & WORD
    return c0 | (c1 << HALF), c2 | (c3 << HALF)


@inline
def bits_of(seed, step, draw, place):
    even, odd = random_bits(seed, step, draw, np.uint64(place >> 1))
    return odd if place & 1 else even


@inline
def uniform(bits):
    """Return a float64 in (0, 1), the middle of one of 2^52 equal parts."""
    return float(bits >> _LOW_BITS) * 2.0**-52 + _HALF_STEP


_INT64, _PAIRS = ir.IntType(64), ir.VectorType(ir.IntType(64), LANES // 2)
_LOW_WORD = (1 << 32) - 1


@emits(lambda *_: LANES32(types.uint64, types.uint64, types.uint64, types.int64))
def rest_lanes(builder, seed, step, draw, first):
    """Return 1 - u of ids first .. first + 15, rounded down to multiples of 2^-31, then to float32.

    `first` is even. Words are held in 64 bits, with arbitrary upper halves, for `vpmuludq`.
    """
    half, low = ir.Constant(_INT64, 32), ir.Constant(_INT64, _LOW_WORD)

    def words_of(value):
        both = builder.and_(value, low), builder.lshr(value, half)
        return (spread(builder, word, _PAIRS) for word in both)

    pair = builder.lshr(first, ir.Constant(_INT64, 1))
    lanes = ir.Constant(_PAIRS, list(range(LANES // 2)))
    c0 = builder.add(spread(builder, pair, _PAIRS), lanes)
    c1, _ = words_of(draw)
    c2, c3 = words_of(step)
    keys = [builder.and_(seed, low), builder.lshr(seed, half)]
    mask, shift = constant(_PAIRS, _LOW_WORD), constant(_PAIRS, 32)
    for _ in range(ROUNDS):
        products = [
            builder.mul(builder.and_(c, mask), constant(_PAIRS, int(factor)))
            for c, factor in zip((c0, c2), FACTORS, strict=True)
        ]
        high = [builder.lshr(product, shift) for product in products]
        key0, key1 = (spread(builder, key, _PAIRS) for key in keys)
        c0 = builder.xor(builder.xor(high[1], c1), key0)
        c2 = builder.xor(builder.xor(high[0], c3), key1)
        c1, c3 = products[1], products[0]  # their low words count
        keys = [
            builder.and_(builder.add(key, ir.Constant(_INT64, int(more))), low)
            for key, more in zip(keys, WEYL, strict=True)
        ]
    drawn = builder.bitcast(builder.or_(builder.and_(c1, mask), builder.shl(c3, shift)), INTEGERS)
    rest = builder.lshr(builder.not_(drawn), constant(INTEGERS, 1))
    return builder.fmul(builder.sitofp(rest, FLOATS), constant(FLOATS, 2.0**-31))
