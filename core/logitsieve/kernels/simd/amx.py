"""Products of the codes of sixteen queries with the bytes of sixteen rows, by Intel's AMX.

A tile has up to sixteen lines of 64 bytes. `multiply_tiles` adds products of signed codes [Q, 64]
with unsigned bytes [16, 16 rows, 4] to int32 sums [Q, 16].
"""

import ctypes
from functools import cache

from llvmlite import ir
from numba import types

from logitsieve.kernels.compile import emits
from logitsieve.kernels.simd.byte_lanes import SIXTY_FOUR, SUMS, load_bytes
from logitsieve.kernels.simd.lanes import (
    BYTE,
    FLOATS,
    INTEGERS,
    LANES,
    LANES32,
    constant,
    cpu_has,
    intrinsic_call,
    shuffle,
    vector_at,
)

AMX = cpu_has("amx-int8") and cpu_has("avx512vnni")  # with VNNI, a query's planes are bytes
LINE = 64  # bytes
TILE_BYTES = 16 * LINE
CONFIGURED = 64  # bytes of a configuration: the sizes of all tiles
PALETTE, LINE_BYTES_AT, LINES_AT = 0, 16, 48  # offsets in a configuration
_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64


@cache
def may_use_tiles() -> bool:
    """Ask Linux (5.16 or later) whether this process may use tiles."""
    if not AMX:
        return False
    return ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0


def _call(builder, name, *arguments):
    intrinsic_call(builder, f"llvm.x86.{name}", ir.VoidType(), list(arguments))


def _tile(number):
    return ir.Constant(BYTE, number)


_LINE = ir.Constant(ir.IntType(64), LINE)


@emits(lambda config: types.void(config))
def configure_tiles(builder, config):
    """Set the sizes of this thread's tiles, and clear them."""
    _call(builder, "ldtilecfg", builder.bitcast(config, BYTE.as_pointer()))


@emits(lambda: types.void())
def release_tiles(builder):
    _call(builder, "tilerelease")


def load_tile(number):
    @emits(lambda start, offset: types.void(start, types.intp))
    def load(builder, start, offset):
        _call(builder, "tileloadd64", _tile(number), vector_at(builder, start, offset, BYTE), _LINE)

    return load


def store_tile(number):
    @emits(lambda start, offset: types.void(start, types.intp))
    def store(builder, start, offset):
        address = vector_at(builder, start, offset, BYTE)
        _call(builder, "tilestored64", _tile(number), address, _LINE)

    return store


def clear_tile(number):
    return emits(lambda: types.void())(lambda builder: _call(builder, "tilezero", _tile(number)))


def multiply_tiles(sums, codes, rows):
    numbers = [_tile(number) for number in (sums, codes, rows)]
    return emits(lambda: types.void())(lambda builder: _call(builder, "tdpbsud", *numbers))


def _bits_of(builder, rows, chunk):
    codes = load_bytes(builder, rows, chunk)
    order = [LANES * (lane % 4) + lane // 4 for lane in range(4 * LANES)]
    return shuffle(builder, codes, codes, order)


@emits(lambda plane, out, chunk: types.void(plane, out, types.intp))
def spread_bit(builder, plane, out, chunk):
    """Write a chunk's bits as eight lines of bytes, 0 or 1; bit p of each byte goes to line p."""
    _spread(builder, [plane], out, chunk)


@emits(lambda first, second, out, chunk: types.void(first, second, out, types.intp))
def spread_two_bits(builder, first, second, out, chunk):
    """Like `spread_bit` for two planes, the higher bits first: 0 to 3."""
    _spread(builder, [first, second], out, chunk)


@emits(lambda p0, p1, p2, p3, out, chunk: types.void(p0, p1, p2, p3, out, types.intp))
def spread_four_bits(builder, p0, p1, p2, p3, out, chunk):
    """Like `spread_bit` for four planes: 0 to 15."""
    _spread(builder, [p0, p1, p2, p3], out, chunk)


def _spread(builder, planes, out, chunk):
    planes = [_bits_of(builder, plane, chunk) for plane in planes]
    first = builder.mul(chunk, ir.Constant(chunk.type, 8 * LINE))
    for bit in range(8):
        value = ir.Constant(SIXTY_FOUR, None)
        for place, plane in enumerate(planes):
            move = len(planes) - 1 - place - bit  # to the left
            moved = (builder.shl if move > 0 else builder.lshr)(
                plane, constant(SIXTY_FOUR, abs(move))
            )
            own = builder.and_(moved, constant(SIXTY_FOUR, 1 << (len(planes) - 1 - place)))
            value = builder.or_(value, own)
        offset = builder.add(first, ir.Constant(first.type, LINE * bit))
        builder.store(value, vector_at(builder, out, offset, SIXTY_FOUR), align=1)


@emits(lambda start, offset: SUMS(start, types.intp))
def load_sums(builder, start, offset):
    return builder.load(vector_at(builder, start, offset, INTEGERS), align=4)


@emits(lambda start, offset: LANES32(start, types.intp))
def load_floats(builder, start, offset):
    lanes = builder.load(vector_at(builder, start, offset, INTEGERS), align=4)
    return builder.sitofp(lanes, FLOATS)
