"""Sums of a query's codes over rows of bits, by tables of sixteen bytes looked up in registers.

A table has the sum of every subset of four codes, so four bits of a row are one look-up (André,
Kermarrec, Le Scouarnec, "Cache locality is not enough", VLDB 2015). Sums are exact.

Byte 16 l + r of a chunk has the bits of coordinates 8 l .. 8 l + 7 of row r, for sixteen rows and
32 coordinates. Its tables are four for the low halves of bytes, then four for the high.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from logitsieve.kernels.compile import emits
from logitsieve.kernels.simd.byte_lanes import SIXTY_FOUR, VPDPBUSD, load_bytes
from logitsieve.kernels.simd.lanes import (
    BYTES,
    FLOATS,
    INT16,
    INT32,
    INTEGERS,
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
CHUNKS_AT_ONCE = 32  # a row's sum of so many fits a word

_WORDS = ir.VectorType(INT16, 2 * LANES)


class LookUp(NamedTuple):
    name: str
    width: int  # bytes at once


# With this one a row's four bytes lie side by side, so that one instruction adds them
# (`_add_dwords`); the others need six for 64 bytes.
IN_DWORDS = LookUp("llvm.x86.avx512.permvar.qi.512", 64)


def look_up_of(triple: str, has: Callable[[str], bool]) -> LookUp:
    if triple.startswith("x86_64"):
        if has("avx512vbmi") and has("avx512vnni"):
            return IN_DWORDS
        if has("avx512bw"):
            return LookUp("llvm.x86.avx512.pshuf.b.512", 64)
        if has("avx2"):
            return LookUp("llvm.x86.avx2.pshuf.b", 32)
        return LookUp("llvm.x86.ssse3.pshuf.b.128" if has("ssse3") else "", 16)
    arm = triple.startswith(("aarch64", "arm64"))
    return LookUp("llvm.aarch64.neon.tbl1.v16i8" if arm else "", 16)


LOOK_UP = look_up_of(llvm.get_process_triple(), cpu_has)
SHORT_LOOK_UP = look_up_of(
    llvm.get_process_triple(), lambda name: name == "ssse3" and cpu_has(name)
)


def look_up(builder: Any, table: Any, codes: Any, name: str = SHORT_LOOK_UP[0]) -> Any:
    """Look up codes of four bits; every sixteen lanes have a table of sixteen bytes."""
    if name:
        return intrinsic_call(builder, name, table.type, [table, codes])
    found = ir.Constant(BYTES, None)
    for place in range(LANES):
        lane = spread(builder, builder.extract_element(table, ir.Constant(INT32, place)), BYTES)
        equal = builder.icmp_signed("==", codes, constant(BYTES, place))
        found = builder.select(equal, lane, found)
    return found


def _look_up_chunk(builder, tables, codes, way):
    if way == IN_DWORDS:
        places = ir.Constant(SIXTY_FOUR, [LANES * (lane % 4) for lane in range(4 * LANES)])
        return intrinsic_call(builder, way.name, SIXTY_FOUR, [tables, builder.or_(codes, places)])
    parts = []
    for first in range(0, 4 * LANES, way.width):
        order = range(first, first + way.width)
        table, code = (shuffle(builder, each, each, order) for each in (tables, codes))
        parts.append(look_up(builder, table, code, way.name))
    return concatenated(builder, parts)


class BitSums(NamedTuple):
    zeros: Any
    add: Any  # (sums, rows, tables, pair): of a pair of chunks
    total: Any  # sixteen sums as float32, exact below 2^24


def bit_sums_by(way: LookUp) -> BitSums:
    dwords = way == IN_DWORDS
    lanes = ir.VectorType(INT32, 4 * LANES) if dwords else ir.VectorType(INT16, 4 * LANES)
    kind = Vector(f"BitSums({lanes})", lanes)

    @emits(lambda sums, rows, tables, pair: sums(sums, rows, tables, types.intp))
    def add(builder, sums, rows, tables, pair):
        found = []
        for second in range(2):
            chunk = builder.add(builder.add(pair, pair), ir.Constant(pair.type, second))
            codes = load_bytes(builder, rows, chunk, CHUNK_BYTES)
            if dwords:
                order = [LANES * (lane % 4) + lane // 4 for lane in range(4 * LANES)]
                codes = shuffle(builder, codes, codes, order)
            for half, moved in enumerate((codes, builder.lshr(codes, constant(SIXTY_FOUR, 4)))):
                place = builder.gep(tables, [ir.Constant(chunk.type, CHUNK_BYTES * half)])
                table = load_bytes(builder, place, chunk, TABLE_BYTES)
                nibbles = builder.and_(moved, constant(SIXTY_FOUR, 15))
                found.append(_look_up_chunk(builder, table, nibbles, way))
        return (_add_dwords if dwords else _add_words)(builder, sums, found)

    total = emits(lambda sums: LANES32(sums))(_total_of_dwords if dwords else _total_of_words)
    return BitSums(zeros_of(kind), add, total)


def _add_dwords(builder, sums, found):
    """Add the four bytes of each row to one of its four sums, which are independent."""
    parts = []
    for each, part in zip(found, _halves(builder, sums, 4), strict=True):
        arguments = [part, builder.bitcast(each, INTEGERS), constant(INTEGERS, 0x01010101)]
        parts.append(intrinsic_call(builder, VPDPBUSD, INTEGERS, arguments))
    return concatenated(builder, parts)


def _total_of_dwords(builder, sums):
    p0, p1, p2, p3 = _halves(builder, sums, 4)
    total = builder.add(builder.add(p0, p1), builder.add(p2, p3))
    return builder.sitofp(total, FLOATS)


def _add_words(builder, sums, found):
    """Sum 32 words of two bytes each, and their upper bytes by themselves."""
    totals, upper = _halves(builder, sums)
    for each in found:
        words = builder.bitcast(each, _WORDS)
        totals = builder.add(totals, words)
        upper = builder.add(upper, builder.lshr(words, constant(_WORDS, 8)))
    return concatenated(builder, [totals, upper])


def _halves(builder, lanes, parts=2):
    size = lanes.type.count // parts
    starts = range(0, lanes.type.count, size)
    return [shuffle(builder, lanes, lanes, range(i, i + size)) for i in starts]


def _total_of_words(builder, sums):
    totals, upper = _halves(builder, sums)
    # Exact modulo 2^16; no sum is larger.
    even = builder.sub(totals, builder.shl(upper, constant(_WORDS, 8)))
    parts = []
    for words in (even, upper):
        wide = builder.zext(words, ir.VectorType(INT32, 2 * LANES))
        while wide.type.count > LANES // 2:
            wide = builder.add(*_halves(builder, wide))
        parts.append(wide)
    order = [lane // 2 + LANES // 2 * (lane % 2) for lane in range(LANES)]
    return builder.sitofp(shuffle(builder, *parts, order), FLOATS)


zero_bits, add_bits, total_of_bits = bit_sums_by(LOOK_UP)
