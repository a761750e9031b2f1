"""Sixteen lanes: the vector values that every dot product here is written with.

Numba vectorises a loop only when it may reassociate the sum, and then the order of the sum depends
on the CPU. These intrinsics emit LLVM vectors of sixteen lanes instead: LLVM turns them into
whatever registers the CPU has (one, two or four of them), in one order of summation everywhere.
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
_INT32 = ir.IntType(32)
_ELEMENTS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_SUFFIX = {types.float32: "v16f32", types.float64: "v16f64"}


def cpu_has(feature: str) -> bool:
    """True if Numba compiles for CPUs that have it: those named by its settings, or this one."""
    features = config.CPU_FEATURES
    if features is None:
        features = get_host_cpu_features()
    return f"+{feature}" in features.split(",")


AVX512 = cpu_has("avx512f")


class Lanes(types.Type):
    """Numba's type of sixteen float32 or float64 values in registers."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


class StoredType(types.Type):
    """Numba's type of what numbers are stored as: `load` makes float32 lanes of it.

    A pointer to it is one to bytes. Offsets are in numbers, at multiples of 16 in a block.
    """

    def emit_load(self, builder, start, offset):
        """LLVM: sixteen float32, of the numbers from `offset` on."""
        raise NotImplementedError

    def emit_load_first(self, builder, start, offset, count):
        """LLVM: the first `count` of them; blocks are whole lanes, and never cut."""
        return self.emit_load(builder, start, offset)


LANES32, LANES64 = Lanes(types.float32), Lanes(types.float64)
_LANES_OF = {types.float32: LANES32, types.float64: LANES64}


def vector_of(dtype: Any) -> ir.VectorType:
    return ir.VectorType(_ELEMENTS[dtype], LANES)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, vector_of(numba_type.dtype))


def _zeros(lanes):
    @intrinsic
    def zeros(typing_context):
        def codegen(context, builder, signature, arguments):
            return ir.Constant(vector_of(lanes.dtype), None)

        return lanes(), codegen

    return zeros


zeros32, zeros64 = _zeros(LANES32), _zeros(LANES64)


def spread(builder, value, vector):
    """LLVM: the value in every lane of a vector type."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
    zeros = ir.Constant(ir.VectorType(_INT32, vector.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def first_lanes_mask(builder, count):
    """LLVM: true in the first `count` lanes."""
    indices = ir.VectorType(_INT32, LANES)
    limit = spread(builder, builder.trunc(count, _INT32), indices)
    return builder.icmp_signed("<", ir.Constant(indices, list(range(LANES))), limit)


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
    """The value in every lane, as the type that `start` points at."""
    dtype = start.dtype

    def codegen(context, builder, signature, arguments):
        cast = context.cast(builder, arguments[1], signature.args[1], dtype)
        return spread(builder, cast, vector_of(dtype))

    return _LANES_OF[dtype](start, value), codegen


def _call(builder, name, dtype, arguments):
    """LLVM: a function of vectors, by its name, on arguments of one type."""
    vector = vector_of(dtype)
    function = builder.module.declare_intrinsic(
        f"llvm.{name}.{_SUFFIX[dtype]}", fnty=ir.FunctionType(vector, [vector] * len(arguments))
    )
    return builder.call(function, arguments)


@intrinsic
def larger(typing_context, left, right):
    def codegen(context, builder, signature, arguments):
        return _call(builder, "maxnum", left.dtype, arguments)

    return left(left, right), codegen


@intrinsic
def smaller(typing_context, left, right):
    def codegen(context, builder, signature, arguments):
        return _call(builder, "minnum", left.dtype, arguments)

    return left(left, right), codegen


@intrinsic
def magnitude(typing_context, lanes):
    def codegen(context, builder, signature, arguments):
        return _call(builder, "fabs", lanes.dtype, arguments)

    return lanes(lanes), codegen


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


@intrinsic
def load(typing_context, start, offset):
    """start[offset : offset + 16]."""
    dtype = start.dtype
    if isinstance(dtype, StoredType):
        return LANES32(start, types.intp), lambda _, builder, __, arguments: dtype.emit_load(
            builder, *arguments
        )

    def codegen(context, builder, signature, arguments):
        address = builder.gep(arguments[0], [arguments[1]])
        address = builder.bitcast(address, vector_of(dtype).as_pointer())
        return builder.load(address, align=dtype.bitwidth // 8)

    return _LANES_OF[dtype](start, types.intp), codegen


@intrinsic
def load_first(typing_context, start, offset, count):
    """start[offset : offset + count] and zeros in the other lanes, which are not read."""
    dtype = start.dtype
    if isinstance(dtype, StoredType):
        return LANES32(
            start, types.intp, types.intp
        ), lambda _, builder, __, arguments: dtype.emit_load_first(builder, *arguments)
    vector = vector_of(dtype)

    def codegen(context, builder, signature, arguments):
        address = builder.gep(arguments[0], [arguments[1]])
        address = builder.bitcast(address, vector.as_pointer())
        mask = first_lanes_mask(builder, arguments[2])
        masked_load = builder.module.declare_intrinsic(
            f"llvm.masked.load.{_SUFFIX[dtype]}.p0",
            fnty=ir.FunctionType(vector, [vector.as_pointer(), _INT32, mask.type, vector]),
        )
        alignment = ir.Constant(_INT32, dtype.bitwidth // 8)
        return builder.call(masked_load, [address, alignment, mask, ir.Constant(vector, None)])

    return _LANES_OF[dtype](start, types.intp, types.intp), codegen


@intrinsic
def store_first(typing_context, start, offset, count, lanes):
    """start[offset : offset + count] = the first lanes; nothing after them is written."""
    dtype = lanes.dtype
    vector = vector_of(dtype)

    def codegen(context, builder, signature, arguments):
        start, offset, count, lanes = arguments
        address = builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())
        mask = first_lanes_mask(builder, count)
        masked_store = builder.module.declare_intrinsic(
            f"llvm.masked.store.{_SUFFIX[dtype]}.p0",
            fnty=ir.FunctionType(ir.VoidType(), [vector, address.type, _INT32, mask.type]),
        )
        alignment = ir.Constant(_INT32, dtype.bitwidth // 8)
        builder.call(masked_store, [lanes, address, alignment, mask])
        return context.get_dummy_value()

    return types.void(start, types.intp, types.intp, lanes), codegen


@intrinsic
def prefetch(typing_context, start, offset):
    """Bring the line of start[offset] into the cache; addresses that are not mapped do nothing."""

    def codegen(context, builder, signature, arguments):
        address = builder.gep(arguments[0], [arguments[1]])
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=kind)
        read, closest, data = (ir.Constant(_INT32, value) for value in (0, 3, 1))
        builder.call(function, [address, read, closest, data])
        return context.get_dummy_value()

    return types.void(start, types.intp), codegen


@intrinsic
def store(typing_context, start, offset, lanes):
    """start[offset : offset + 16] = lanes."""

    def codegen(context, builder, signature, arguments):
        address = builder.gep(arguments[0], [arguments[1]])
        address = builder.bitcast(address, vector_of(lanes.dtype).as_pointer())
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
    """left * right + total, fused where the CPU does so.

    In float64 with widened float32 factors the product is exact, so that fusing changes nothing.
    """

    def codegen(context, builder, signature, arguments):
        return _call(builder, "fmuladd", total.dtype, arguments)

    return total(left, right, total), codegen


def _shuffle(builder, left, right, order):
    mask = ir.Constant(ir.VectorType(_INT32, len(order)), order)
    return builder.shuffle_vector(left, right, mask)


@intrinsic
def pair_sum(typing_context, lanes):
    """The sum of the lanes: adjacent lanes are added, then adjacent sums, and so on."""

    def codegen(context, builder, signature, arguments):
        (values,) = arguments
        width = LANES
        while width > 1:
            even = _shuffle(builder, values, values, list(range(0, width, 2)))
            odd = _shuffle(builder, values, values, list(range(1, width, 2)))
            values = builder.fadd(even, odd)
            width //= 2
        return builder.extract_element(values, ir.Constant(_INT32, 0))

    return lanes.dtype(lanes), codegen


@intrinsic
def pair_sums_of_four(typing_context, a, b, c, d):
    """Four times `pair_sum`, bit for bit, at the price of little more than one."""

    def codegen(context, builder, signature, arguments):
        def fold(left, right):
            lanes = left.type.count + (right.type.count if right is not left else 0)
            even = _shuffle(builder, left, right, list(range(0, lanes, 2)))
            return builder.fadd(even, _shuffle(builder, left, right, list(range(1, lanes, 2))))

        values = fold(fold(arguments[0], arguments[1]), fold(arguments[2], arguments[3]))
        while values.type.count > 4:
            values = fold(values, values)
        sums = [builder.extract_element(values, ir.Constant(_INT32, i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(a.dtype, 4)(a, b, c, d), codegen


@intrinsic
def sums_of_four(typing_context, a, b, c, d):
    """The sums of the lanes of four vectors, at the price of little more than one."""

    def codegen(context, builder, signature, arguments):
        def fold(left, right, order_low, order_high):
            low = _shuffle(builder, left, right, order_low)
            return builder.fadd(low, _shuffle(builder, left, right, order_high))

        def halves(width, group):
            """Lane orders that take the low and the high half of each `group` lanes."""
            low = [base + i for base in range(0, 2 * width, group) for i in range(group // 2)]
            return low, [i + group // 2 for i in low]

        ab = fold(arguments[0], arguments[1], *halves(16, 16))  # 8 lanes of a, 8 of b
        cd = fold(arguments[2], arguments[3], *halves(16, 16))
        abcd = fold(ab, cd, *halves(16, 8))  # 4 lanes of each
        for group in (4, 2):
            low = [base + i for base in range(0, 4 * group, group) for i in range(group // 2)]
            abcd = fold(abcd, abcd, low, [i + group // 2 for i in low])
        sums = [builder.extract_element(abcd, ir.Constant(_INT32, i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(a.dtype, 4)(a, b, c, d), codegen


@intrinsic
def rounded(typing_context, lanes):
    """Each lane rounded to a whole number, halves to the even one."""

    def codegen(context, builder, signature, arguments):
        return _call(builder, "rint", lanes.dtype, arguments)

    return lanes(lanes), codegen


@intrinsic
def times_power_of_two(typing_context, lanes, powers):
    """lanes * 2^powers; `powers` are whole numbers, -126 to 127, in float32."""
    integers, vector = ir.VectorType(_INT32, LANES), vector_of(types.float32)

    def codegen(context, builder, signature, arguments):
        biased = builder.add(
            builder.fptosi(arguments[1], integers), ir.Constant(integers, [127] * LANES)
        )
        bits = builder.shl(biased, ir.Constant(integers, [23] * LANES))
        return builder.fmul(arguments[0], builder.bitcast(bits, vector))

    return LANES32(LANES32, LANES32), codegen


@intrinsic
def shifted_exponents(typing_context, lanes, steps, below, limit):
    """lanes * 2^n in float64 where `below` >= `limit`, else 0; `steps` are n + 1.5 2^52.

    The low bits of such a sum are those of the whole number n. Results are normal numbers.
    """
    integers, vector = ir.VectorType(ir.IntType(64), LANES), vector_of(types.float64)

    def codegen(context, builder, signature, arguments):
        values, counts, compared, least = arguments
        exponents = builder.shl(
            builder.bitcast(counts, integers), ir.Constant(integers, [52] * LANES)
        )
        bits = builder.add(builder.bitcast(values, integers), exponents)
        kept = builder.fcmp_ordered(">=", compared, least)
        return builder.select(kept, builder.bitcast(bits, vector), ir.Constant(vector, None))

    return LANES64(LANES64, LANES64, LANES64, LANES64), codegen


@inline
def largest_of(values, count):
    """The largest of float32 values[:count], which are whole lanes; -inf of none."""
    most = splat32(np.float32(-np.inf))
    for i in range(0, count, LANES):
        most = larger(most, load(values, i))
    return largest_lane(most)


@inline
def largest_of64(values, count):
    """The same of float64 values."""
    most = splat64(-np.inf)
    for i in range(0, count, LANES):
        most = larger(most, load(values, i))
    return largest_lane(most)
