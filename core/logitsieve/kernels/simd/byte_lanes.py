"""Lanes of bytes: sixteen int32 sums of products of unsigned row bytes and signed query bytes.

One instruction does 64 products where the CPU has AVX-512 VNNI. `multiply_bytes_generic` is the
same sum in plain vector operations: what the instruction is tested against, and what compiles
elsewhere, though there it is never reached (see `screen_descriptor`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from logitsieve.kernels.simd.lanes import LANES, LANES32, cpu_has, spread

_BYTE, _INT32 = ir.IntType(8), ir.IntType(32)
_SUMS, _BYTES = ir.VectorType(_INT32, LANES), ir.VectorType(_BYTE, 4 * LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


VNNI = cpu_has("avx512vnni")


class Sums(types.Type):
    """Numba's type of sixteen int32 sums in registers."""

    def __init__(self) -> None:
        super().__init__(name="Sums")


SUMS = Sums()


@register_model(Sums)
class _SumsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _SUMS)


@intrinsic
def zero_sums(typing_context):
    def codegen(context, builder, signature, arguments):
        return ir.Constant(_SUMS, None)

    return SUMS(), codegen


def _add_products_vnni(builder, sums, rows, query):
    product = builder.module.declare_intrinsic(
        "llvm.x86.avx512.vpdpbusd.512", fnty=ir.FunctionType(_SUMS, [_SUMS] * 3)
    )
    return builder.call(product, [sums, builder.bitcast(rows, _SUMS), query])


def _add_products_generic(builder, sums, rows, query):
    query = builder.bitcast(query, _BYTES)
    for place in range(4):
        order = ir.Constant(_SUMS, list(range(place, 4 * LANES, 4)))
        of_rows = builder.zext(builder.shuffle_vector(rows, rows, order), _SUMS)
        of_query = builder.sext(builder.shuffle_vector(query, query, order), _SUMS)
        sums = builder.add(sums, builder.mul(of_rows, of_query))
    return sums


def _load_bytes(builder, start, place):
    """LLVM: 64 bytes from 64 * place on."""
    offset = builder.mul(place, ir.Constant(place.type, 4 * LANES))
    address = builder.bitcast(builder.gep(start, [offset]), _BYTES.as_pointer())
    return builder.load(address, align=1)


def _multiply_bytes(emit):
    @intrinsic
    def multiply(typing_context, sums, rows, query, quad):
        def codegen(context, builder, signature, arguments):
            sums, rows, query, quad = arguments
            codes = _load_bytes(builder, rows, quad)
            words = builder.bitcast(query, _INT32.as_pointer())
            word = builder.load(builder.gep(words, [quad]), align=1)
            return emit(builder, sums, codes, spread(builder, word, _SUMS))

        return SUMS(sums, rows, query, types.intp), codegen

    return multiply


def _multiply_row(emit):
    @intrinsic
    def multiply(typing_context, sums, row, query, piece):
        def codegen(context, builder, signature, arguments):
            sums, row, query, piece = arguments
            of_query = builder.bitcast(_load_bytes(builder, query, piece), _SUMS)
            return emit(builder, sums, _load_bytes(builder, row, piece), of_query)

        return SUMS(sums, row, query, types.intp), codegen

    return multiply


# (sums, rows, query, quad): sums[r] += dot(rows[quad, r, 0:4], query[4 quad : 4 quad + 4]).
multiply_bytes_generic = _multiply_bytes(_add_products_generic)
multiply_bytes = _multiply_bytes(_add_products_vnni) if VNNI else multiply_bytes_generic

# (sums, row, query, piece): the sums grow by dot(row, query) over bytes 64 piece .. 64 piece + 63.
multiply_row_generic = _multiply_row(_add_products_generic)
multiply_row = _multiply_row(_add_products_vnni) if VNNI else multiply_row_generic


@intrinsic
def add_sums(typing_context, left, right):
    def codegen(context, builder, signature, arguments):
        return builder.add(*arguments)

    return SUMS(left, right), codegen


@intrinsic
def store_bytes(typing_context, start, offset, lanes):
    """start[offset : offset + 16] = lanes, whole numbers from -128 to 127."""
    vector = ir.VectorType(_BYTE, LANES)

    def codegen(context, builder, signature, arguments):
        address = builder.gep(arguments[0], [arguments[1]])
        address = builder.bitcast(address, vector.as_pointer())
        builder.store(builder.fptosi(arguments[2], vector), address, align=1)
        return context.get_dummy_value()

    return types.void(start, types.intp, lanes), codegen


@intrinsic
def scale_sums(typing_context, sums, correction, scales):
    """(sums - correction) * scales as sixteen float32."""

    def codegen(context, builder, signature, arguments):
        sums, correction, scales = arguments
        correction = spread(builder, builder.trunc(correction, _INT32), _SUMS)
        exact = builder.sitofp(builder.sub(sums, correction), _FLOATS)
        return builder.fmul(exact, scales)

    return LANES32(sums, types.int64, scales), codegen


@intrinsic
def join_planes(typing_context, high, low):
    """128 high + low, lane by lane."""

    def codegen(context, builder, signature, arguments):
        shifted = builder.shl(arguments[0], ir.Constant(_SUMS, [7] * LANES))
        return builder.add(shifted, arguments[1])

    return SUMS(high, low), codegen


@intrinsic
def total_of_sums(typing_context, sums):
    def codegen(context, builder, signature, arguments):
        reduce = builder.module.declare_intrinsic(
            "llvm.vector.reduce.add.v16i32", fnty=ir.FunctionType(_INT32, [_SUMS])
        )
        return builder.sext(builder.call(reduce, arguments), ir.IntType(64))

    return types.int64(sums), codegen
