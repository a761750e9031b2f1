"""Masks: a bit for each of sixteen lanes that reach a limit, and lists of these lanes."""

from llvmlite import ir
from numba import types

from logitsieve.kernels.compile import emits, inline
from logitsieve.kernels.simd.lanes import (
    AVX512,
    INT32,
    INTEGERS,
    LANES,
    constant,
    intrinsic_call,
    spread,
    vector_at,
)

EVERY_LANE = (1 << LANES) - 1


def _bits(builder, mask):
    return builder.zext(builder.bitcast(mask, ir.IntType(LANES)), ir.IntType(64))


@emits(lambda lanes, limit: lanes(lanes, lanes.dtype))
def lanes_below(builder, lanes, limit):
    """Return the lanes below `limit`, -inf in place of others."""
    below = builder.fcmp_ordered("<", lanes, spread(builder, limit, lanes.type))
    return builder.select(below, lanes, constant(lanes.type, float("-inf")))


@emits(lambda lanes, limit: types.int64(lanes, lanes.dtype))
def lanes_not_below(builder, lanes, limit):
    """Return a bit for each lane that is not below `limit`, also for NaN."""
    return _bits(builder, builder.fcmp_unordered(">=", lanes, spread(builder, limit, lanes.type)))


@emits(lambda lanes, limits: types.int64(lanes, lanes))
def lanes_within(builder, lanes, limits):
    """Return a bit for each lane that is at most its lane of `limits`, not for NaN."""
    return _bits(builder, builder.fcmp_ordered("<=", lanes, limits))


@emits(lambda mask, lanes: lanes(types.int64, lanes))
def without(builder, mask, lanes):
    """Return the lanes, with zeros where a bit of `mask` is set."""
    bits = builder.trunc(mask, ir.IntType(LANES))
    out = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
    return builder.select(out, ir.Constant(lanes.type, None), lanes)


@emits(lambda mask, lanes: lanes(types.int64, lanes))
def only(builder, mask, lanes):
    """Return the lanes, with -inf where a bit of `mask` is not set."""
    bits = builder.trunc(mask, ir.IntType(LANES))
    kept = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
    return builder.select(kept, lanes, constant(lanes.type, float("-inf")))


@inline
def first_lanes(mask, count):
    return mask & ((1 << count) - 1) if count < LANES else mask


@emits(lambda mask: types.int64(mask))
def lowest_bit(builder, mask):
    return builder.cttz(mask, ir.Constant(ir.IntType(1), 1))


@emits(lambda mask: types.int64(mask))
def count_bits(builder, mask):
    return builder.ctpop(mask)


def _append_lanes(avx512):
    @emits(lambda start, *_: types.intp(start, types.intp, types.int64, types.intp))
    def append(builder, start, offset, mask, first):
        bits = builder.trunc(mask, ir.IntType(LANES))
        lanes = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
        first = spread(builder, builder.trunc(first, INT32), INTEGERS)
        places = builder.add(first, ir.Constant(INTEGERS, list(range(LANES))))
        if avx512:
            name = "llvm.x86.avx512.mask.compress.v16i32"
            arguments = [places, ir.Constant(INTEGERS, None), lanes]
            packed = intrinsic_call(builder, name, INTEGERS, arguments)
            builder.store(packed, vector_at(builder, start, offset, INTEGERS), align=4)
        else:
            name = "llvm.masked.compressstore.v16i32"
            arguments = [places, vector_at(builder, start, offset, INT32), lanes]
            intrinsic_call(builder, name, ir.VoidType(), arguments)
        return builder.add(offset, builder.ctpop(mask))

    return append


# (start, offset, mask, first): for each bit set write first + lane to start[offset:], where sixteen
# elements may change; return the offset after the last.
append_lanes_generic = _append_lanes(avx512=False)
append_lanes = _append_lanes(AVX512)
