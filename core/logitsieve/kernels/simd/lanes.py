"""Sixteen lanes: the vector values of every dot product.

Numba vectorises a loop only if it may reassociate the sum; the order would depend on the CPU. These
intrinsics emit LLVM vectors of sixteen lanes, which become one, two or four registers, with one
order of summation everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, models, register_model

from logitsieve.kernels.compile import inline

LANES = 16
BYTE, INT16, INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
INTEGERS = ir.VectorType(INT32, LANES)
_ELEMENTS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_SUFFIX = {types.float32: "v16f32", types.float64: "v16f64"}


def cpu_has(feature: str) -> bool:
    """True if Numba compiles for CPUs with a feature: named by its settings, or this one's."""
    features = config.CPU_FEATURES
    if features is None:
        features = get_host_cpu_features()
    return f"+{feature}" in features.split(",")


AVX512 = cpu_has("avx512f")


class Vector(types.Type):
    """Numba's type of a vector in registers; `dtype` is the type of its lanes, if floats."""

    def __init__(self, name: str, vector: ir.VectorType, dtype: Any = None) -> None:
        self.vector, self.dtype = vector, dtype
        super().__init__(name=name)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, numba_type.vector)


class StoredType(types.Type):
    """Numba's type of stored numbers, in bytes: `load` makes float32 lanes of them."""

    def emit_load(self, builder, start, offset):
        raise NotImplementedError

    def emit_load_first(self, builder, start, offset, count):
        return self.emit_load(builder, start, offset)  # blocks are whole lanes


def vector_of(dtype: Any) -> ir.VectorType:
    return ir.VectorType(_ELEMENTS[dtype], LANES)


_LANES_OF = {dtype: Vector(f"Lanes({dtype})", vector_of(dtype), dtype) for dtype in _ELEMENTS}
LANES32, LANES64 = _LANES_OF.values()


def zeros_of(vector):
    @intrinsic
    def zeros(typing_context):
        def codegen(context, builder, signature, arguments):
            return ir.Constant(vector.vector, None)

        return vector(), codegen

    return zeros


zeros32, zeros64 = zeros_of(LANES32), zeros_of(LANES64)


def spread(builder, value, vector):
    """LLVM: the value in every lane of a vector type."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, vector.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def first_lanes_mask(builder, count):
    """LLVM: true in the first `count` lanes."""
    limit = spread(builder, builder.trunc(count, INT32), INTEGERS)
    return builder.icmp_signed("<", ir.Constant(INTEGERS, list(range(LANES))), limit)


def _splat(lanes):
    vector = vector_of(lanes.dtype)

    @intrinsic
    def splat(typing_context, value):
        def codegen(context, builder, signature, arguments):
            return spread(builder, arguments[0], vector)

        return lanes(lanes.dtype), codegen

    return splat


splat32, splat64 = _splat(LANES32), _splat(LANES64)


@intrinsic
def splat_like(typing_context, start, value):
    """The value in every lane, in the type that `start` points at."""
    dtype = start.dtype

    def codegen(context, builder, signature, arguments):
        cast = context.cast(builder, arguments[1], signature.args[1], dtype)
        return spread(builder, cast, vector_of(dtype))

    return _LANES_OF[dtype](start, value), codegen


def _call(builder, name, dtype, arguments):
    vector = vector_of(dtype)
    function = builder.module.declare_intrinsic(
        f"llvm.{name}.{_SUFFIX[dtype]}", fnty=ir.FunctionType(vector, [vector] * len(arguments))
    )
    return builder.call(function, arguments)


def _of_one(name):
    """Return the intrinsic of one vector for LLVM's function `name`."""

    @intrinsic
    def of_one(typing_context, lanes):
        def codegen(context, builder, signature, arguments):
            return _call(builder, name, lanes.dtype, arguments)

        return lanes(lanes), codegen

    return of_one


def _of_two(name):
    @intrinsic
    def of_two(typing_context, left, right):
        def codegen(context, builder, signature, arguments):
            return _call(builder, name, left.dtype, arguments)

        return left(left, right), codegen

    return of_two


larger, smaller = _of_two("maxnum"), _of_two("minnum")
magnitude, rounded = _of_one("fabs"), _of_one("rint")  # halves to the even number


@intrinsic
def largest_lane(typing_context, lanes):
    vector = vector_of(lanes.dtype)

    def codegen(context, builder, signature, arguments):
        result = context.get_value_type(lanes.dtype)
        reduce = builder.module.declare_intrinsic(
            f"llvm.vector.reduce.fmax.{_SUFFIX[lanes.dtype]}",
            fnty=ir.FunctionType(result, [vector]),
        )
        return builder.call(reduce, arguments)

    return lanes.dtype(lanes), codegen


def vector_at(builder, start, offset, vector):
    """LLVM: the address of a vector at start[offset]."""
    return builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())


@intrinsic
def load(typing_context, start, offset):
    """start[offset : offset + 16]."""
    dtype = start.dtype
    if isinstance(dtype, StoredType):
        return LANES32(start, types.intp), lambda _, builder, __, arguments: dtype.emit_load(
            builder, *arguments
        )

    def codegen(context, builder, signature, arguments):
        address = vector_at(builder, *arguments, vector_of(dtype))
        return builder.load(address, align=dtype.bitwidth // 8)

    return _LANES_OF[dtype](start, types.intp), codegen


def masked_load(builder, address, count, suffix, align):
    """LLVM: the first `count` lanes at an address, and zeros in the others, which are not read."""
    mask, vector = first_lanes_mask(builder, count), address.type.pointee
    function = builder.module.declare_intrinsic(
        f"llvm.masked.load.{suffix}.p0",
        fnty=ir.FunctionType(vector, [address.type, INT32, mask.type, vector]),
    )
    arguments = [address, ir.Constant(INT32, align), mask, ir.Constant(vector, None)]
    return builder.call(function, arguments)


@intrinsic
def load_first(typing_context, start, offset, count):
    """start[offset : offset + count] and zeros in the other lanes, which are not read."""
    dtype = start.dtype
    if isinstance(dtype, StoredType):
        return LANES32(
            start, types.intp, types.intp
        ), lambda _, builder, __, arguments: dtype.emit_load_first(builder, *arguments)

    def codegen(context, builder, signature, arguments):
        start, offset, count = arguments
        address = vector_at(builder, start, offset, vector_of(dtype))
        return masked_load(builder, address, count, _SUFFIX[dtype], dtype.bitwidth // 8)

    return _LANES_OF[dtype](start, types.intp, types.intp), codegen


@intrinsic
def prefetch(typing_context, start, offset):
    """Bring the line of start[offset] into the cache; addresses that are not mapped do nothing."""

    def codegen(context, builder, signature, arguments):
        address = vector_at(builder, *arguments, BYTE)
        kind = ir.FunctionType(ir.VoidType(), [address.type, INT32, INT32, INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=kind)
        read, closest, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
        builder.call(function, [address, read, closest, data])
        return context.get_dummy_value()

    return types.void(start, types.intp), codegen


@intrinsic
def store(typing_context, start, offset, lanes):
    """start[offset : offset + 16] = lanes."""

    def codegen(context, builder, signature, arguments):
        address = vector_at(builder, *arguments[:2], vector_of(lanes.dtype))
        builder.store(arguments[2], address, align=lanes.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(start, types.intp, lanes), codegen


@intrinsic
def widen(typing_context, lanes):
    def codegen(context, builder, signature, arguments):
        return builder.fpext(arguments[0], vector_of(types.float64))

    return LANES64(LANES32), codegen


@intrinsic
def multiply_add(typing_context, left, right, total):
    """left * right + total, fused if the CPU does so; of widened float32 no bit changes."""

    def codegen(context, builder, signature, arguments):
        return _call(builder, "fmuladd", total.dtype, arguments)

    return total(left, right, total), codegen


def shuffle(builder, left, right, order):
    """LLVM: the lanes of two concatenated vectors, in that order."""
    mask = ir.Constant(ir.VectorType(INT32, len(order)), list(order))
    return builder.shuffle_vector(left, right, mask)


def concatenated(builder, parts):
    """LLVM: 2, 4, 8, ... vectors of one type as one."""
    while len(parts) > 1:
        both = range(2 * parts[0].type.count)
        parts = [shuffle(builder, *parts[i : i + 2], both) for i in range(0, len(parts), 2)]
    return parts[0]


@intrinsic
def pair_sum(typing_context, lanes):
    """Sum the lanes: adjacent lanes are added, then adjacent sums, and so on."""

    def codegen(context, builder, signature, arguments):
        (values,) = arguments
        width = LANES
        while width > 1:
            even, odd = (shuffle(builder, values, values, range(i, width, 2)) for i in (0, 1))
            values = builder.fadd(even, odd)
            width //= 2
        return builder.extract_element(values, ir.Constant(INT32, 0))

    return lanes.dtype(lanes), codegen


@intrinsic
def pair_sums_of_four(typing_context, s0, s1, s2, s3):
    """Four times `pair_sum`, bit for bit, for little more than the price of one."""

    def codegen(context, builder, signature, arguments):
        def fold(left, right):
            lanes = left.type.count + (right.type.count if right is not left else 0)
            even, odd = (shuffle(builder, left, right, range(i, lanes, 2)) for i in (0, 1))
            return builder.fadd(even, odd)

        values = fold(fold(arguments[0], arguments[1]), fold(arguments[2], arguments[3]))
        while values.type.count > 4:
            values = fold(values, values)
        sums = [builder.extract_element(values, ir.Constant(INT32, i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(s0.dtype, 4)(s0, s1, s2, s3), codegen


@intrinsic
def sums_of_four(typing_context, s0, s1, s2, s3):
    """The sums of the lanes of four vectors, for little more than the price of one."""

    def codegen(context, builder, signature, arguments):
        def fold(left, right, lanes, group):
            """Add the low and the high half of each `group` of the lanes."""
            low = [base + i for base in range(0, lanes, group) for i in range(group // 2)]
            high = [i + group // 2 for i in low]
            parts = (shuffle(builder, left, right, order) for order in (low, high))
            return builder.fadd(*parts)

        ab, cd = (fold(*arguments[i : i + 2], 32, 16) for i in (0, 2))  # 8 lanes of each
        abcd = fold(ab, cd, 32, 8)  # 4 lanes of each
        for group in (4, 2):
            abcd = fold(abcd, abcd, 4 * group, group)
        sums = [builder.extract_element(abcd, ir.Constant(INT32, i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(s0.dtype, 4)(s0, s1, s2, s3), codegen


@inline
def largest_of(values, count):
    """The largest of values[:count], whole lanes; -inf if empty."""
    most = splat_like(values, -np.inf)
    for i in range(0, count, LANES):
        most = larger(most, load(values, i))
    return largest_lane(most)
