"""The functions that read stored rows, which kernels call by address with the rows' kind.

So each loop is compiled once, not in every kernel with every kind: float32 rows, which need none of
this, are as fast as they would be alone. Below them are the loops of simd/dots.py.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from logitsieve.api.results import Int64
from logitsieve.kernels.compile import CFunction, c_function, inline
from logitsieve.kernels.rows.blocks32 import as_q4_0, as_q8_0
from logitsieve.kernels.rows.blocks256 import as_q4_k, as_q6_k
from logitsieve.kernels.rows.halves import as_bfloat16, as_float16
from logitsieve.kernels.simd.dots import dot64, dots_1x4
from logitsieve.kernels.simd.lanes import LANES, load, load_first, store, store_first

# Numbers of the kinds, as descriptors hold them. F32 are read where they are.
F32, F16, BF16, Q8_0, Q4_0, Q6_K, Q4_K = range(7)
NUMBERS = {
    "F32": F32, "F16": F16, "BF16": BF16, "Q8_0": Q8_0, "Q4_0": Q4_0, "Q6_K": Q6_K, "Q4_K": Q4_K,
}  # fmt: skip

DECODE, DOT, DOTS = range(3)  # places in the table of addresses


@c_function("int64(int64, CPointer(uint8), int64, CPointer(float32))")
def decode(kind, stored, count, values):
    """Fill values[:count] with the first numbers of `stored`."""
    if kind == F16:
        return _decode(as_float16(stored), count, values)
    if kind == BF16:
        return _decode(as_bfloat16(stored), count, values)
    if kind == Q8_0:
        return _decode(as_q8_0(stored), count, values)
    if kind == Q4_0:
        return _decode(as_q4_0(stored), count, values)
    if kind == Q6_K:
        return _decode(as_q6_k(stored), count, values)
    return _decode(as_q4_k(stored), count, values)


@inline
def _decode(numbers, count, values):
    whole = count - count % LANES
    for i in range(0, whole, LANES):
        store(values, i, load(numbers, i))
    if whole < count:
        store_first(values, whole, count - whole, load_first(numbers, whole, count - whole))
    return count


@c_function("float64(int64, CPointer(uint8), CPointer(float64), int64)")
def dot(kind, row, h64, dim):
    """`dot64` of one stored row."""
    if kind == F16:
        return dot64(as_float16(row), h64, dim)
    if kind == BF16:
        return dot64(as_bfloat16(row), h64, dim)
    if kind == Q8_0:
        return dot64(as_q8_0(row), h64, dim)
    if kind == Q4_0:
        return dot64(as_q4_0(row), h64, dim)
    if kind == Q6_K:
        return dot64(as_q6_k(row), h64, dim)
    return dot64(as_q4_k(row), h64, dim)


@c_function(
    "int64(int64, CPointer(uint8), int64, int64, int64, int64, CPointer(float32), int64,"
    " CPointer(float32))"
)
def dots(kind, stored, i, j, k, m, h, dim, sums):
    """`dots_1x4` of the stored rows whose first numbers are i, j, k and m, to sums[:4]."""
    if kind == F16:
        return _dots(as_float16(stored), i, j, k, m, h, dim, sums)
    if kind == BF16:
        return _dots(as_bfloat16(stored), i, j, k, m, h, dim, sums)
    if kind == Q8_0:
        return _dots(as_q8_0(stored), i, j, k, m, h, dim, sums)
    if kind == Q4_0:
        return _dots(as_q4_0(stored), i, j, k, m, h, dim, sums)
    if kind == Q6_K:
        return _dots(as_q6_k(stored), i, j, k, m, h, dim, sums)
    return _dots(as_q4_k(stored), i, j, k, m, h, dim, sums)


@inline
def _dots(stored, i, j, k, m, h, dim, sums):
    sums[0], sums[1], sums[2], sums[3] = dots_1x4(stored, i, j, k, m, h, dim)
    return dim


@cache
def addresses() -> Int64:
    """The addresses of all three, at their places; compiled at the first use."""
    functions: tuple[CFunction, ...] = (decode, dot, dots)
    return np.array([function.address for function in functions], np.int64)


def _call(context, builder, address, result, arguments, kinds):
    """LLVM: a call of the function at an address."""
    function = ir.FunctionType(result, [context.get_value_type(kind) for kind in kinds])
    return builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


@intrinsic
def call_decode(typing_context, address, kind, stored, count, values):
    """`decode` at that address."""

    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        return _call(context, builder, address, ir.IntType(64), rest, signature.args[1:])

    numbers = types.int64, types.int64
    return types.int64(*numbers, stored, types.int64, values), codegen


@intrinsic
def call_dot(typing_context, address, kind, row, h64, dim):
    """`dot` at that address."""

    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        return _call(context, builder, address, ir.DoubleType(), rest, signature.args[1:])

    return types.float64(types.int64, types.int64, row, h64, types.int64), codegen


@intrinsic
def call_dots(typing_context, address, kind, stored, i, j, k, m, h, dim):
    """The four sums of `dots` at that address."""
    places = (types.int64,) * 4

    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        sums = cgutils.alloca_once(builder, ir.FloatType(), 4)
        kinds = *signature.args[1:], h
        _call(context, builder, address, ir.IntType(64), [*rest, sums], kinds)
        each = [builder.load(cgutils.gep_inbounds(builder, sums, place)) for place in range(4)]
        return context.make_tuple(builder, signature.return_type, each)

    four = types.UniTuple(types.float32, 4)
    return four(types.int64, types.int64, stored, *places, h, types.int64), codegen
