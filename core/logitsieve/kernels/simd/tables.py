"""Sums of a query's codes where rows have bits, by tables of sixteen bytes looked up in registers.

A table has the sum of each subset of four codes of a query, so that four bits of a row are one
look-up: as the fast scan of faiss (André, Kermarrec, Le Scouarnec, "Cache locality is not enough",
VLDB 2015) does it. Sums are exact: bytes are added as words, and no sum of four is above 255.

Sixteen rows lie together, in chunks of 64 bytes: byte 16 l + r is of row r and has the bits of
coordinates 8 l .. 8 l + 7 of the 32 of the chunk. Tables of a chunk are 128 bytes: four for the low
halves of bytes, then four for the high ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from logitsieve.kernels.simd.byte_lanes import SUMS
from logitsieve.kernels.simd.lanes import LANES, cpu_has, spread

CHUNK_COORDINATES, CHUNK_BYTES, TABLE_BYTES = 32, 64, 128
LARGEST_SUM = 255  # of the magnitudes of four codes of a query
CHUNKS_AT_ONCE = 32  # whose sums of a row fit a word

_BYTE, _WORD, _INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
BYTES = ir.VectorType(_BYTE, LANES)
_CHUNK, _WORDS = ir.VectorType(_BYTE, 4 * LANES), ir.VectorType(_WORD, 2 * LANES)
_BOTH = ir.VectorType(_WORD, 4 * LANES)


def _order(places):
    return ir.Constant(ir.VectorType(_INT32, len(places)), list(places))


def look_up_of(triple: str, has: Callable[[str], bool]) -> tuple[str, int]:
    """LLVM's name of the widest instruction of a target that looks up bytes, and its bytes.

    Each sixteen bytes have a table of their own. ("", 16) if there is none.
    """
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
    """LLVM: the bytes of a table of sixteen at codes of four bits."""
    if name:
        function = ir.FunctionType(BYTES, [BYTES, BYTES])
        return builder.call(builder.module.declare_intrinsic(name, fnty=function), [table, codes])
    found = ir.Constant(BYTES, None)
    for place in range(LANES):
        lane = spread(builder, builder.extract_element(table, ir.Constant(_INT32, place)), BYTES)
        equal = builder.icmp_signed("==", codes, ir.Constant(BYTES, [place] * LANES))
        found = builder.select(equal, lane, found)
    return found


def _look_up_chunk(builder, tables, codes, way):
    """LLVM: for each sixteen of 64 bytes, those of their own table at codes of four bits."""
    name, width = way
    vector = ir.VectorType(_BYTE, width)
    parts = []
    for first in range(0, 4 * LANES, width):
        table, code = (
            builder.shuffle_vector(each, each, _order(range(first, first + width)))
            for each in (tables, codes)
        )
        if width == LANES:
            parts.append(look_up(builder, table, code, name))
        else:
            function = ir.FunctionType(vector, [vector, vector])
            function = builder.module.declare_intrinsic(name, fnty=function)
            parts.append(builder.call(function, [table, code]))
    return _concatenated(builder, parts)


def _concatenated(builder, parts):
    while len(parts) > 1:
        both = _order(range(2 * parts[0].type.count))
        parts = [
            builder.shuffle_vector(parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)
        ]
    return parts[0]


class WordSums(types.Type):
    """Numba's type of running sums of looked-up bytes: 32 words, and 32 of their upper bytes."""

    def __init__(self) -> None:
        super().__init__(name="WordSums")


WORD_SUMS = WordSums()


@register_model(WordSums)
class _WordSumsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _BOTH)


@intrinsic
def zero_words(typing_context):
    def codegen(context, builder, signature, arguments):
        return ir.Constant(_BOTH, None)

    return WORD_SUMS(), codegen


def _load_chunk(builder, start, place, by):
    address = builder.gep(start, [builder.mul(place, ir.Constant(place.type, by))])
    return builder.load(builder.bitcast(address, _CHUNK.as_pointer()), align=1)


def add_bits_by(way):
    """add(sums, rows, tables, chunk): the sums with what bits of a chunk of sixteen rows find."""

    @intrinsic
    def add(typing_context, sums, rows, tables, chunk):
        def codegen(context, builder, signature, arguments):
            sums, rows, tables, chunk = arguments
            codes = _load_chunk(builder, rows, chunk, CHUNK_BYTES)
            low = builder.and_(codes, ir.Constant(_CHUNK, [15] * 4 * LANES))
            high = builder.lshr(codes, ir.Constant(_CHUNK, [4] * 4 * LANES))
            whole, upper = _halves(builder, sums)
            for half, nibbles in enumerate((low, high)):
                place = builder.gep(tables, [ir.Constant(chunk.type, CHUNK_BYTES * half)])
                table = _load_chunk(builder, place, chunk, TABLE_BYTES)
                found = builder.bitcast(_look_up_chunk(builder, table, nibbles, way), _WORDS)
                whole = builder.add(whole, found)
                eight = ir.Constant(_WORDS, [8] * 2 * LANES)
                upper = builder.add(upper, builder.lshr(found, eight))
            return _concatenated(builder, [whole, upper])

        return sums(sums, rows, tables, types.intp), codegen

    return add


add_bits = add_bits_by(LOOK_UP)


def _halves(builder, sums):
    return (
        builder.shuffle_vector(sums, sums, _order(range(first, first + 2 * LANES)))
        for first in (0, 2 * LANES)
    )


@intrinsic
def sums_of_words(typing_context, sums):
    """The sixteen sums, one a row."""

    def codegen(context, builder, signature, arguments):
        whole, upper = _halves(builder, arguments[0])
        shifted = builder.shl(upper, ir.Constant(_WORDS, [8] * 2 * LANES))
        even = builder.sub(whole, shifted)  # modulo 2^16, above which no sum is
        totals = []
        for words in (even, upper):
            wide = builder.zext(words, ir.VectorType(_INT32, 2 * LANES))
            while wide.type.count > LANES // 2:
                size = wide.type.count // 2
                parts = [
                    builder.shuffle_vector(wide, wide, _order(range(first, first + size)))
                    for first in (0, size)
                ]
                wide = builder.add(*parts)
            totals.append(wide)
        order = [lane // 2 + LANES // 2 * (lane % 2) for lane in range(LANES)]
        return builder.shuffle_vector(*totals, _order(order))

    return SUMS(sums), codegen


@intrinsic
def combine_sums(typing_context, left, factor, right):
    """left * factor + right, of sixteen whole numbers each."""
    vector = ir.VectorType(_INT32, LANES)

    def codegen(context, builder, signature, arguments):
        left, factor, right = arguments
        factor = spread(builder, builder.trunc(factor, _INT32), vector)
        return builder.add(builder.mul(left, factor), right)

    return SUMS(left, types.int64, right), codegen
