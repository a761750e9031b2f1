"""Rows of ggml's Q8_0 and Q4_0: blocks of 32 codes and a float16 scale in front of them.

docs/index-format.md has the layouts. A number is code times scale.
"""

from __future__ import annotations

from logitsieve.kernels.rows.stored_types import (
    BYTES,
    FLOATS,
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
from logitsieve.kernels.simd.lanes import StoredType

SCALE = 2  # bytes


class Q8_0(StoredType):  # noqa: N801 - ggml's name
    """34 bytes: the scale, then codes of a byte."""

    def emit_load(self, builder, start, offset):
        begin, place = block_of(builder, offset, 32, 34)
        scale = everywhere(builder, half_at(builder, start, begin))
        codes = load_at(builder, start, moved(builder, builder.add(begin, place), SCALE), BYTES)
        return builder.fmul(builder.sitofp(codes, FLOATS), scale)


class Q4_0(StoredType):  # noqa: N801 - ggml's name
    """18 bytes: the scale, then codes + 8 of four bits, the second half above the first."""

    def emit_load(self, builder, start, offset):
        begin, place = block_of(builder, offset, 32, 18)
        scale = everywhere(builder, half_at(builder, start, begin))
        first = bits_of(builder, place, 2, 4)  # 4 for the second half
        codes = small_codes(builder, start, moved(builder, begin, SCALE), first, 4)
        return builder.fmul(minus(builder, codes, 8), scale)


as_q8_0, as_q4_0 = pointer_to(Q8_0("Q8_0")), pointer_to(Q4_0("Q4_0"))
