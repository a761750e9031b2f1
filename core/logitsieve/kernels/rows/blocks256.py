"""Rows of ggml's Q6_K and Q4_K: blocks of 256 codes, with a small scale for each 16 or 32 of them.

docs/index-format.md has the layouts.
"""

from __future__ import annotations

from llvmlite import ir

from logitsieve.kernels.rows.stored_types import (
    BYTE,
    bits_of,
    block_of,
    everywhere,
    half_at,
    load_at,
    minus,
    moved,
    pointer_to,
    small_codes,
)
from logitsieve.kernels.simd.lanes import LANES, StoredType

_FLOAT = ir.FloatType()


class Q6_K(StoredType):  # noqa: N801 - ggml's name
    """210 bytes: 128 of low bits, 64 of high bits, 16 scales for 16 codes each, the scale of all.

    A code is 6 bits, less 32; a number is (scale of all x scale) x code.
    """

    def emit_load(self, builder, start, offset):
        begin, place = block_of(builder, offset, 256, 210)
        half = bits_of(builder, place, 7, 1)  # each of 128 codes
        low_place = builder.add(_times(builder, half, 64), bits_of(builder, place, 0, 63))
        first = _times(builder, bits_of(builder, place, 6, 1), 4)
        low = small_codes(builder, start, builder.add(begin, low_place), first, 4)
        high_place = builder.add(_times(builder, half, 32), bits_of(builder, place, 0, 31))
        high_place = moved(builder, builder.add(begin, high_place), 128)
        first = _times(builder, bits_of(builder, place, 5, 3), 2)
        high = small_codes(builder, start, high_place, first, 2)
        codes = builder.or_(low, builder.shl(high, ir.Constant(high.type, [4] * LANES)))
        scale_place = builder.add(begin, bits_of(builder, place, 4, 15))
        scale = load_at(builder, start, moved(builder, scale_place, 192), BYTE)
        whole = half_at(builder, start, moved(builder, begin, 208))
        scale = builder.fmul(whole, builder.sitofp(scale, _FLOAT))
        return builder.fmul(minus(builder, codes, 32), everywhere(builder, scale))


class Q4_K(StoredType):  # noqa: N801 - ggml's name
    """144 bytes: two scales of all, 12 of scales and minima of 32 codes each, 128 of codes.

    A number is (first scale x scale) x code - second scale x minimum. Scales and minima are of six
    bits: those of the first four groups in bytes 0 .. 7, whose upper bits are, with bytes 8 .. 11,
    those of the others.
    """

    def emit_load(self, builder, start, offset):
        begin, place = block_of(builder, offset, 256, 144)
        group = bits_of(builder, place, 5, 7)
        small = moved(builder, builder.add(begin, bits_of(builder, group, 0, 3)), 4)
        scales, minima, others = (
            load_at(builder, start, moved(builder, small, 4 * part), BYTE) for part in range(3)
        )
        late = builder.icmp_unsigned(">=", group, ir.Constant(group.type, 4))
        scale = _small(builder, late, scales, bits_of(builder, others, 0, 15))
        minimum = _small(builder, late, minima, bits_of(builder, others, 4, 15))
        scale = builder.fmul(half_at(builder, start, begin), scale)
        minimum = builder.fmul(half_at(builder, start, moved(builder, begin, 2)), minimum)
        pair = _times(builder, bits_of(builder, place, 6, 3), 32)
        codes_place = builder.add(pair, bits_of(builder, place, 0, 31))
        codes_place = moved(builder, builder.add(begin, codes_place), 16)
        first = _times(builder, bits_of(builder, place, 5, 1), 4)
        codes = minus(builder, small_codes(builder, start, codes_place, first, 4), 0)
        products = builder.fmul(everywhere(builder, scale), codes)
        return builder.fsub(products, everywhere(builder, minimum))


def _times(builder, number, factor):
    return builder.mul(number, ir.Constant(number.type, factor))


def _small(builder, late, byte, low):
    """float32 of six bits: those of `byte`, or `low` with the upper two of `byte` above it."""
    high = builder.and_(builder.lshr(byte, ir.Constant(BYTE, 2)), ir.Constant(BYTE, 0x30))
    bits = builder.select(late, builder.or_(low, high), bits_of(builder, byte, 0, 63))
    return builder.uitofp(bits, _FLOAT)


as_q6_k, as_q4_k = pointer_to(Q6_K("Q6_K")), pointer_to(Q4_K("Q4_K"))
