"""Masks: which of sixteen lanes reach a limit, as bits of an integer, and lists of those lanes."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import (
    AVX512,
    BYTE,
    INT32,
    INTEGERS,
    LANES,
    spread,
    vector_at,
    vector_of,
)


def _bits(builder, mask):
    """LLVM: the lanes of a mask as bits of an integer."""
    return builder.zext(builder.bitcast(mask, ir.IntType(LANES)), ir.IntType(64))


@intrinsic
def lanes_below(typing_context, lanes, limit):
    """The lanes below `limit`; -inf in place of others."""
    vector = vector_of(lanes.dtype)

    def codegen(context, builder, signature, arguments):
        below = builder.fcmp_ordered("<", arguments[0], spread(builder, arguments[1], vector))
        return builder.select(below, arguments[0], ir.Constant(vector, [float("-inf")] * LANES))

    return lanes(lanes, lanes.dtype), codegen


@intrinsic
def lanes_not_below(typing_context, lanes, limit):
    """A bit for each lane that is not below `limit`, also for NaN."""
    vector = vector_of(lanes.dtype)

    def codegen(context, builder, signature, arguments):
        limits = spread(builder, arguments[1], vector)
        return _bits(builder, builder.fcmp_unordered(">=", arguments[0], limits))

    return types.int64(lanes, lanes.dtype), codegen


@intrinsic
def lanes_within(typing_context, lanes, limits):
    """A bit for each lane that is at most its lane of `limits`; not for NaN."""

    def codegen(context, builder, signature, arguments):
        return _bits(builder, builder.fcmp_ordered("<=", *arguments))

    return types.int64(lanes, lanes), codegen


@intrinsic
def where_below(typing_context, compared, limit, lanes):
    """The lanes where `compared` is below `limit`; zeros in place of others."""
    vector = vector_of(lanes.dtype)

    def codegen(context, builder, signature, arguments):
        compared, limit, lanes = arguments
        below = builder.fcmp_ordered("<", compared, spread(builder, limit, vector))
        return builder.select(below, lanes, ir.Constant(vector, None))

    return lanes(lanes, lanes.dtype, lanes), codegen


@intrinsic
def where_equal(typing_context, states, place, state, lanes):
    """The lanes where the byte of states[place : place + 16] is `state`; else zeros."""
    vector, compared = vector_of(lanes.dtype), ir.VectorType(BYTE, LANES)

    def codegen(context, builder, signature, arguments):
        start, place, state, lanes = arguments
        found = builder.load(vector_at(builder, start, place, compared), align=1)
        same = spread(builder, builder.trunc(state, BYTE), compared)
        equal = builder.icmp_unsigned("==", found, same)
        return builder.select(equal, lanes, ir.Constant(vector, None))

    return lanes(states, types.intp, types.intp, lanes), codegen


@intrinsic
def without(typing_context, taken, lanes):
    """lanes - taken: zeros in place of taken lanes, for `taken` with zeros in place of others."""

    def codegen(context, builder, signature, arguments):
        return builder.fsub(*reversed(arguments))

    return lanes(taken, lanes), codegen


@inline
def first_lanes(mask, count):
    """The bits of the first `count` lanes, 0 < count."""
    return mask & ((1 << count) - 1) if count < LANES else mask


@intrinsic
def lowest_bit(typing_context, mask):
    """The place of the lowest bit that is set in `mask`, not 0."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(mask), codegen


@intrinsic
def count_bits(typing_context, mask):
    def codegen(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(mask), codegen


def _compress_avx512(builder, places, bits):
    vector = places.type
    function = builder.module.declare_intrinsic(
        "llvm.x86.avx512.mask.compress.v16i32",
        fnty=ir.FunctionType(vector, [vector, vector, bits.type]),
    )
    return builder.call(function, [places, ir.Constant(vector, None), bits])


def _append_lanes(compress):
    @intrinsic
    def append(typing_context, start, offset, mask, first):
        def codegen(context, builder, signature, arguments):
            start, offset, mask, first = arguments
            bits = builder.trunc(mask, ir.IntType(LANES))
            lanes = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
            first = spread(builder, builder.trunc(first, INT32), INTEGERS)
            places = builder.add(first, ir.Constant(INTEGERS, list(range(LANES))))
            if compress is None:
                kind = ir.FunctionType(ir.VoidType(), [INTEGERS, INT32.as_pointer(), lanes.type])
                function = builder.module.declare_intrinsic(
                    "llvm.masked.compressstore.v16i32", fnty=kind
                )
                builder.call(function, [places, vector_at(builder, start, offset, INT32), lanes])
            else:
                address = vector_at(builder, start, offset, INTEGERS)
                builder.store(compress(builder, places, lanes), address, align=4)
            return builder.add(offset, builder.ctpop(mask))

        return types.intp(start, types.intp, types.int64, types.intp), codegen

    return append


# (start, offset, mask, first): write first + lane for each lane whose bit is set to start[offset:],
# of which sixteen elements may change; the offset after them.
append_lanes_generic = _append_lanes(None)
append_lanes = _append_lanes(_compress_avx512) if AVX512 else append_lanes_generic
