"""Rows in ggml's blocks: the table READERS says how sixteen numbers of each type are decoded.

A number is code * scale, or code * scale + low; `span` neighbours share a float32 scale and low.
docs/index-format.md has the layouts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba.extending import register_model

from logitsieve.kernels.rows.stored_types import (
    BYTE,
    FLOATS,
    INT16,
    StoredModel,
    bits_of,
    block_of,
    half_at,
    load_at,
    moved,
    times,
)
from logitsieve.kernels.simd.lanes import BYTES, LANES, StoredType, constant, intrinsic_call, spread
from logitsieve.kernels.simd.tables import look_up
from logitsieve.utils.stored import KINDS

_FLOAT, _WORDS = ir.FloatType(), ir.VectorType(INT16, LANES // 2)
_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Place(NamedTuple):
    """Sixteen numbers of a block, from `number` on; the block begins at byte `begin`."""

    builder: Any
    start: Any
    begin: Any
    number: Any  # a multiple of sixteen

    def load(self, first: int, more: Any, kind: Any) -> Any:
        place = self.builder.add(self.begin, more)
        return load_at(self.builder, self.start, moved(self.builder, place, first), kind)


Emit = Callable[[Place], Any]  # emits sixteen codes
Number = Callable[[Place, ir.VectorType], Any]  # emits a float32 in every lane of a vector


class Reader(NamedTuple):
    codes: Emit
    scale: Number
    low: Number | None = None
    span: int = 32


def _signed(first: int) -> Emit:
    return lambda place: place.load(first, place.number, BYTES)


def _packed(first: int, width: int, run: int) -> Emit:
    """Read codes of `width` bits: first the lowest bits of `run` bytes, then their next bits."""

    def emit(place: Place) -> Any:
        builder, number, each = place.builder, place.number, 8 // width
        filled = bits_of(builder, number, (run * each).bit_length() - 1, -1)
        more = builder.add(times(builder, filled, run), bits_of(builder, number, 0, run - 1))
        shift = times(builder, bits_of(builder, number, run.bit_length() - 1, each - 1), width)
        words = builder.bitcast(place.load(first, more, BYTES), _WORDS)
        words = builder.lshr(words, spread(builder, builder.trunc(shift, INT16), _WORDS))
        return bits_of(builder, builder.bitcast(words, BYTES), 0, (1 << width) - 1)

    return emit


def _each_bit(first: int) -> Emit:
    def emit(place: Place) -> Any:
        builder = place.builder
        bits = place.load(first, bits_of(builder, place.number, 3, -1), INT16)
        lanes = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
        return builder.zext(lanes, BYTES)

    return emit


def _above(low: Emit, high: Emit) -> Emit:
    def emit(place: Place) -> Any:
        builder = place.builder
        return builder.or_(low(place), builder.shl(high(place), constant(BYTES, 4)))

    return emit


def _less(codes: Emit, by: int) -> Emit:
    return lambda place: place.builder.sub(codes(place), constant(BYTES, by))


def _looked_up(codes: Emit, values: tuple[int, ...]) -> Emit:
    table = ir.Constant(BYTES, list(values))
    return lambda place: look_up(place.builder, table, codes(place))


def _half(first: int) -> Number:
    def emit(place: Place, floats: ir.VectorType) -> Any:
        builder = place.builder
        return half_at(builder, place.start, moved(builder, place.begin, first), floats)

    return emit


def _byte_scale(first: int) -> Number:
    def emit(place: Place, floats: ir.VectorType) -> Any:
        byte = place.load(first, bits_of(place.builder, place.number, 4, -1), BYTE)
        return spread(place.builder, place.builder.sitofp(byte, _FLOAT), floats)

    return emit


def _six_bits(upper: bool) -> Number:
    """Read scales (or minima, `upper`) of six bits, one for every 32 numbers, in bytes 4 .. 15.

    The first four are in bytes 4 .. 7 (8 .. 11). The other four have their lower four bits in a
    half of bytes 12 .. 15, and their upper two bits at the top of the bytes of the first four.
    """

    def emit(place: Place, floats: ir.VectorType) -> Any:
        builder = place.builder
        group = bits_of(builder, place.number, 5, -1)
        within = bits_of(builder, group, 0, 3)
        byte, others = (place.load(first, within, BYTE) for first in (8 if upper else 4, 12))
        low = bits_of(builder, others, 4 if upper else 0, 15)
        high = bits_of(builder, byte, 2, 0x30)
        late = builder.icmp_unsigned(">=", group, ir.Constant(group.type, 4))
        bits = builder.select(late, builder.or_(low, high), bits_of(builder, byte, 0, 63))
        return spread(builder, builder.uitofp(bits, _FLOAT), floats)

    return emit


def _times(left: Number, right: Number) -> Number:
    return lambda place, floats: place.builder.fmul(left(place, floats), right(place, floats))


def _minus(number: Number) -> Number:
    return lambda place, floats: place.builder.fneg(number(place, floats))


_K_SCALE = _times(_half(0), _six_bits(upper=False))
_K_LOW = _minus(_times(_half(2), _six_bits(upper=True)))

READERS = {
    "Q8_0": Reader(_signed(2), _half(0)),
    "Q4_0": Reader(_less(_packed(2, 4, 16), 8), _half(0)),
    "Q4_1": Reader(_packed(4, 4, 16), _half(0), _half(2)),
    "Q5_0": Reader(_less(_above(_packed(6, 4, 16), _each_bit(2)), 16), _half(0)),
    "Q5_1": Reader(_above(_packed(8, 4, 16), _each_bit(4)), _half(0), _half(2)),
    "IQ4_NL": Reader(_looked_up(_packed(2, 4, 16), _NON_LINEAR), _half(0)),
    "Q4_K": Reader(_packed(16, 4, 32), _K_SCALE, _K_LOW),
    "Q5_K": Reader(_above(_packed(48, 4, 32), _packed(16, 1, 32)), _K_SCALE, _K_LOW),
    "Q6_K": Reader(
        _less(_above(_packed(0, 4, 64), _packed(128, 2, 32)), 32),
        _times(_half(208), _byte_scale(192)),
        span=16,
    ),
}


class Blocks(StoredType):
    def __init__(self, kind, magnitudes=False):
        self.kind, self.magnitudes = kind, magnitudes
        super().__init__(name=f"Blocks({kind}, {magnitudes})")

    def place(self, builder, start, offset):
        kind = KINDS[self.kind]
        return Place(builder, start, *block_of(builder, offset, kind.values, kind.bytes))

    def emit_load(self, builder, start, offset):
        place, reader = self.place(builder, start, offset), READERS[self.kind]
        codes = builder.sitofp(reader.codes(place), FLOATS)
        terms = [builder.fmul(codes, reader.scale(place, FLOATS))]
        if reader.low is not None:
            terms.append(reader.low(place, FLOATS))
        if self.magnitudes:
            absolute = "llvm.fabs.v16f32"
            terms = [intrinsic_call(builder, absolute, FLOATS, [term]) for term in terms]
        return terms[0] if len(terms) == 1 else builder.fadd(*terms)


register_model(Blocks)(StoredModel)
