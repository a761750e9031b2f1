"""Readers of bytes and bits that all stored types share, and rows of float16 and bfloat16.

Functions emit LLVM for vectors or single numbers. Each product and each sum is rounded by itself,
never fused, as in ggml's reference.
"""

from llvmlite import ir
from numba.extending import models, register_model

from logitsieve.kernels.simd.lanes import (
    BYTE,
    FLOATS,
    INT16,
    INT32,
    INTEGERS,
    LANES,
    StoredType,
    constant,
    cpu_has,
    masked_load,
    spread,
    vector_at,
)
from logitsieve.kernels.simd.pointers import pointer_to

WORDS = ir.VectorType(INT16, LANES)

F16C = cpu_has("f16c")  # the CPU converts float16; otherwise integer operations do
SIGN, INFINITE = 0x8000, 0x7C00  # of a float16
EXPONENT = 0x7F800000  # of a float32, all ones
SHIFTED = 2.0**112  # a float16's bits, moved into a float32, are too small by this factor


class StoredModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, BYTE)


def load_at(builder, start, place, kind):
    return builder.load(vector_at(builder, start, place, kind), align=1)


def moved(builder, place, by):
    return builder.add(place, ir.Constant(place.type, by))


def bits_of(builder, number, first, mask):
    return builder.and_(_shifted(builder, number, first), constant(number.type, mask))


def _shifted(builder, number, first):
    return builder.lshr(number, constant(number.type, first)) if first else number


def block_of(builder, offset, values, size):
    block = _shifted(builder, offset, values.bit_length() - 1)
    return times(builder, block, size), bits_of(builder, offset, 0, values - LANES)


def times(builder, number, factor):
    return builder.mul(number, ir.Constant(number.type, factor))


def floats_of_halves(builder, halves, native=F16C):
    lanes = halves.type.count
    floats, integers = ir.VectorType(ir.FloatType(), lanes), ir.VectorType(INT32, lanes)
    if native:
        halves = builder.bitcast(halves, ir.VectorType(ir.HalfType(), lanes))
        return builder.fpext(halves, floats)
    wide = builder.zext(halves, integers)
    absolute = builder.and_(wide, constant(integers, SIGN - 1))
    bits = builder.shl(absolute, constant(integers, 13))
    finite = builder.fmul(builder.bitcast(bits, floats), constant(floats, SHIFTED))
    endless = builder.icmp_unsigned(">=", absolute, constant(integers, INFINITE))
    others = builder.or_(bits, constant(integers, EXPONENT))
    bits = builder.select(endless, others, builder.bitcast(finite, integers))
    sign = builder.shl(builder.and_(wide, constant(integers, SIGN)), constant(integers, 16))
    return builder.bitcast(builder.or_(bits, sign), floats)


def half_at(builder, start, place, floats):
    """Return a float16 in every lane of `floats`.

    Converting a single number would wait for the last value of the register that LLVM chose.
    """
    halves = ir.VectorType(INT16, floats.count)
    return floats_of_halves(builder, spread(builder, load_at(builder, start, place, INT16), halves))


def floats_of_bfloats(builder, halves):
    wide = builder.zext(halves, INTEGERS)
    return builder.bitcast(builder.shl(wide, constant(INTEGERS, 16)), FLOATS)


class Halves(StoredType):
    def __init__(self, name, widened):
        self.widened = widened
        super().__init__(name=name)

    def emit_load(self, builder, start, offset):
        return self.widened(builder, load_at(builder, start, builder.add(offset, offset), WORDS))

    def emit_load_first(self, builder, start, offset, count):
        address = vector_at(builder, start, builder.add(offset, offset), WORDS)
        return self.widened(builder, masked_load(builder, address, count, "v16i16", 1))


register_model(Halves)(StoredModel)
FLOAT16 = Halves("Float16", floats_of_halves)
float16_pointer = pointer_to(FLOAT16)
