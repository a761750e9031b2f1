"""Sums of a query's codes over rows of bits, by tables of sixteen bytes looked up in registers.

A table has the sum of each subset of four codes of a query: four bits of a row are one look-up
(André, Kermarrec, Le Scouarnec, "Cache locality is not enough", VLDB 2015). Sums are exact: bytes
are added as words, and no sum of four is above 255.

Sixteen rows lie in chunks of 64 bytes: byte 16 l + r of row r has the bits of coordinates 8 l .. 8
l + 7 of 32. A chunk's tables are four for the low halves of bytes, then four for the high.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from logitsieve.kernels.compile import emits
from logitsieve.kernels.simd.byte_lanes import SIXTY_FOUR, load_bytes
from logitsieve.kernels.simd.lanes import (
    BYTES,
    FLOATS,
    INT16,
    INT32,
    LANES,
    LANES32,
    Vector,
    concatenated,
    constant,
    cpu_has,
    intrinsic_call,
    shuffle,
    spread,
    zeros_of,
)

CHUNK_COORDINATES, CHUNK_BYTES, TABLE_BYTES = 32, 64, 128
LARGEST_SUM = 255  # of the magnitudes of four codes of a query
CHUNKS_AT_ONCE = 32  # their sums of a row fit a word

_WORDS = ir.VectorType(INT16, 2 * LANES)


def look_up_of(triple: str, has: Callable[[str], bool]) -> tuple[str, int]:
    if triple.startswith("x86_64"):
        if has("avx512bw"):
            return "llvm.x86.avx512.pshuf.b.512", 64
        if has("avx2"):
            return "llvm.x86.avx2.pshuf.b", 32
        return ("llvm.x86.ssse3.pshuf.b.128" if has("ssse3") else ""), 16
    return ("llvm.aarch64.neon.tbl1.v16i8" if triple.startswith(("aarch64", "arm64")) else ""), 16


LOOK_UP = look_up_of(llvm.get_process_triple(), cpu_has)
SHORT_LOOK_UP = look_up_of(
    llvm.get_process_triple(), lambda name: name == "ssse3" and cpu_has(name)
)


def look_up(builder: Any, table: Any, codes: Any, name: str = SHORT_LOOK_UP[0]) -> Any:
    """LLVM: the bytes of tables of sixteen, one for each sixteen lanes, at codes of four bits."""
    if name:
        return intrinsic_call(builder, name, table.type, [table, codes])
    found = ir.Constant(BYTES, None)
    for place in range(LANES):
        lane = spread(builder, builder.extract_element(table, ir.Constant(INT32, place)), BYTES)
        equal = builder.icmp_signed("==", codes, constant(BYTES, place))
        found = builder.select(equal, lane, found)
    return found


def _look_up_chunk(builder, tables, codes, way):
    name, width = way
    parts = []
    for first in range(0, 4 * LANES, width):
        order = range(first, first + width)
        table, code = (shuffle(builder, each, each, order) for each in (tables, codes))
        parts.append(look_up(builder, table, code, name))
    return concatenated(builder, parts)


# Running sums of looked-up bytes: 32 words, and 32 of their upper bytes.
zero_words = zeros_of(Vector("WordSums", ir.VectorType(INT16, 4 * LANES)))


def add_bits_by(way):
    @emits(lambda sums, rows, tables, chunk: sums(sums, rows, tables, types.intp))
    def add(builder, sums, rows, tables, chunk):
        codes = load_bytes(builder, rows, chunk, CHUNK_BYTES)
        low = builder.and_(codes, constant(SIXTY_FOUR, 15))
        high = builder.lshr(codes, constant(SIXTY_FOUR, 4))
        totals, upper = _halves(builder, sums)
        for half, nibbles in enumerate((low, high)):
            place = builder.gep(tables, [ir.Constant(chunk.type, CHUNK_BYTES * half)])
            table = load_bytes(builder, place, chunk, TABLE_BYTES)
            found = builder.bitcast(_look_up_chunk(builder, table, nibbles, way), _WORDS)
            totals = builder.add(totals, found)
            upper = builder.add(upper, builder.lshr(found, constant(_WORDS, 8)))
        return concatenated(builder, [totals, upper])

    return add


add_bits = add_bits_by(LOOK_UP)


def _halves(builder, lanes):
    size = lanes.type.count // 2
    return [shuffle(builder, lanes, lanes, range(i, i + size)) for i in (0, size)]


@emits(lambda sums: LANES32(sums))
def sums_of_words(builder, sums):
    """Sixteen sums as float32, exact below 2^24."""
    totals, upper = _halves(builder, sums)
    # Modulo 2^16, above which no sum is.
    even = builder.sub(totals, builder.shl(upper, constant(_WORDS, 8)))
    parts = []
    for words in (even, upper):
        wide = builder.zext(words, ir.VectorType(INT32, 2 * LANES))
        while wide.type.count > LANES // 2:
            wide = builder.add(*_halves(builder, wide))
        parts.append(wide)
    order = [lane // 2 + LANES // 2 * (lane % 2) for lane in range(LANES)]
    return builder.sitofp(shuffle(builder, *parts, order), FLOATS)
