"""Random numbers of philox.py for sixteen ids at once, to rule out most of them.

Each pair of ids shares a counter. A 32-bit word is held in 64 bits with an arbitrary upper half, so
LLVM multiplies words by the CPU's instruction for that (`vpmuludq`).
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logitsieve.kernels.sampling.philox import FACTORS, ROUNDS, WEYL
from logitsieve.kernels.simd.lanes import LANES, LANES32, spread

_WORD, _WORDS = ir.IntType(64), ir.VectorType(ir.IntType(64), LANES // 2)
_LOW = (1 << 32) - 1


def _everywhere(value):
    return ir.Constant(_WORDS, [int(value)] * (LANES // 2))


@intrinsic
def rest_lanes(typing_context, seed, step, draw, first):
    """Return 1 - u of ids first .. first + 15, rounded down to multiples of 2^-31, then to float32.

    `first` is even; the other arguments are uint64, as for `random_bits`.
    """

    def codegen(context, builder, signature, arguments):
        seed, step, draw, first = arguments
        half, low = ir.Constant(_WORD, 32), ir.Constant(_WORD, _LOW)

        def word(value):
            return builder.and_(value, low)

        def split(value):
            return spread(builder, word(value), _WORDS), spread(
                builder, builder.lshr(value, half), _WORDS
            )

        pair = builder.lshr(first, ir.Constant(_WORD, 1))
        lanes = ir.Constant(_WORDS, list(range(LANES // 2)))
        c0 = builder.add(spread(builder, pair, _WORDS), lanes)
        c1 = spread(builder, word(draw), _WORDS)
        c2, c3 = split(step)
        keys = [word(seed), builder.lshr(seed, half)]
        mask, shift = _everywhere(_LOW), _everywhere(32)
        for _ in range(ROUNDS):
            products = [
                builder.mul(builder.and_(c, mask), _everywhere(factor))
                for c, factor in zip((c0, c2), FACTORS, strict=True)
            ]
            high = [builder.lshr(product, shift) for product in products]
            key0, key1 = (spread(builder, key, _WORDS) for key in keys)
            c0 = builder.xor(builder.xor(high[1], c1), key0)
            c2 = builder.xor(builder.xor(high[0], c3), key1)
            c1, c3 = products[1], products[0]  # their low words count
            keys = [
                word(builder.add(key, ir.Constant(_WORD, int(more))))
                for key, more in zip(keys, WEYL, strict=True)
            ]
        even = builder.and_(c1, mask)
        odd = builder.shl(c3, shift)
        words = ir.VectorType(ir.IntType(32), LANES)
        drawn = builder.bitcast(builder.or_(even, odd), words)
        rest = builder.lshr(builder.not_(drawn), ir.Constant(words, [1] * LANES))
        floats = ir.VectorType(ir.FloatType(), LANES)
        return builder.fmul(builder.sitofp(rest, floats), ir.Constant(floats, [2.0**-31] * LANES))

    return LANES32(types.uint64, types.uint64, types.uint64, types.int64), codegen
