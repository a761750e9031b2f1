"""The functions that read stored rows, which kernels call by address.

Each is one loop, compiled for a type of rows when such rows are first used, not into every kernel:
float32 rows need none of this.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from logitsieve.api.results import Float32, Int64
from logitsieve.kernels.compile import CFunction, kernel
from logitsieve.kernels.rows.blocks import READERS, Blocks
from logitsieve.kernels.rows.products import SPAN, coded_dots, coded_fours
from logitsieve.kernels.rows.stored_types import BFloat16, Float16
from logitsieve.kernels.simd.dots import dot64, dots_1x4
from logitsieve.kernels.simd.lanes import (
    INT32,
    LANES,
    StoredType,
    first_lanes_mask,
    load,
    load_first,
    store,
    vector_at,
    vector_of,
)
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.utils.floats import aligned, widened
from logitsieve.utils.stored import KINDS, StoredMatrix

# Numba's type of stored rows, by kind; F32 rows need none.
STORED_TYPES: dict[str, StoredType] = {
    "F16": Float16(),
    "BF16": BFloat16(),
    **{kind: Blocks(kind) for kind in READERS},
}
# How a matrix's rows are read, as descriptors have it: where they are, or by functions. From CODED
# on they may be multiplied with a query's codes, too; those of COSTLY codes have more to decode.
F32, STORED, CODED, COSTLY = range(4)
DECODE, DOT, DOTS, MAGNITUDES, CODED_DOTS, CODED_FOURS = range(6)  # places in a table of addresses


@intrinsic
def store_first(typing_context, start, offset, count, lanes):
    """start[offset : offset + count] = the first lanes; nothing after them is written."""
    vector = vector_of(types.float32)

    def codegen(context, builder, signature, arguments):
        start, offset, count, lanes = arguments
        address = vector_at(builder, start, offset, vector)
        mask = first_lanes_mask(builder, count)
        masked_store = builder.module.declare_intrinsic(
            "llvm.masked.store.v16f32.p0",
            fnty=ir.FunctionType(ir.VoidType(), [vector, address.type, INT32, mask.type]),
        )
        alignment = ir.Constant(INT32, 4)
        builder.call(masked_store, [lanes, address, alignment, mask])
        return context.get_dummy_value()

    return types.void(start, types.intp, types.intp, lanes), codegen


def decode(stored, count, values):
    whole = count - count % LANES
    for i in range(0, whole, LANES):
        store(values, i, load(stored, i))
    if whole < count:
        store_first(values, whole, count - whole, load_first(stored, whole, count - whole))
    return count


def dot(row, h64, dim):
    return dot64(row, h64, dim)


def dots(stored, i, j, k, m, h, dim, sums):
    """`dots_1x4` of the stored rows with first numbers i, j, k and m, to sums[:4]."""
    sums[0], sums[1], sums[2], sums[3] = dots_1x4(stored, i, j, k, m, h, dim)
    return dim


def _pointers(*kinds):
    return [types.CPointer(kind) for kind in kinds]


@cache
def functions_of(kind: str) -> tuple[CFunction, ...]:
    """Return the functions for rows of that kind, in order; the last three only for blocks."""
    stored, floats, doubles = _pointers(STORED_TYPES[kind], types.float32, types.float64)
    size, places = types.int64, [types.int64] * 4
    multiplies = size(stored, *places, floats, size, floats)
    functions = [
        CFunction(decode, size(stored, size, floats)),
        CFunction(dot, types.float64(stored, doubles, size)),
        CFunction(dots, multiplies),
    ]
    if kind in READERS:
        [magnitudes] = _pointers(Blocks(kind, magnitudes=True))
        functions.append(CFunction(decode, size(magnitudes, size, floats)))
        functions += [CFunction(coded_dots, multiplies), CFunction(coded_fours, multiplies)]
    return tuple(functions)


def way_of(kind: str) -> int:
    if (reader := READERS.get(kind)) is None:
        return F32 if kind == "F32" else STORED
    return CODED if reader.low is None and reader.span == SPAN else COSTLY


@cache
def addresses(kind: str) -> Int64:
    """Return the addresses of the functions for rows of that kind, compiled at the first use."""
    return np.array([function.address for function in functions_of(kind)], np.int64)


def _call(context, builder, address, result, arguments, kinds):
    function = ir.FunctionType(result, [context.get_value_type(kind) for kind in kinds])
    return builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


@intrinsic
def call_decode(typing_context, address, stored, count, values):
    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        return _call(context, builder, address, ir.IntType(64), rest, signature.args[1:])

    return types.int64(types.int64, stored, types.int64, values), codegen


@intrinsic
def call_dot(typing_context, address, row, h64, dim):
    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        return _call(context, builder, address, ir.DoubleType(), rest, signature.args[1:])

    return types.float64(types.int64, row, h64, types.int64), codegen


@intrinsic
def call_dots(typing_context, address, stored, i, j, k, m, h, dim):
    """Return the four sums of `dots`, or of `coded_dots` or `coded_fours`, at that address."""
    places = (types.int64,) * 4

    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        sums = cgutils.alloca_once(builder, ir.FloatType(), 4)
        kinds = *signature.args[1:], h
        _call(context, builder, address, ir.IntType(64), [*rest, sums], kinds)
        each = [builder.load(cgutils.gep_inbounds(builder, sums, place)) for place in range(4)]
        return context.make_tuple(builder, signature.return_type, each)

    four = types.UniTuple(types.float32, 4)
    return four(types.int64, stored, *places, h, types.int64), codegen


def decoded(matrix: StoredMatrix) -> Float32:
    """Return float32 [V, D] of a stored matrix (docs/index-format.md); F32 is not copied."""
    if matrix.kind == "F32":
        return matrix.data
    if not KINDS[matrix.kind].blocks:
        return widened(matrix.data)
    values = aligned(matrix.shape)
    stored = np.asarray(matrix.data).reshape(-1)
    decode_rows(int(addresses(matrix.kind)[DECODE]), stored, values.reshape(-1))
    return values


@kernel("(int64, uint8[::1], float32[::1])")
def decode_rows(address, stored, values):
    """Fill `values` with the numbers of stored rows; `address` is that of their `decode`."""
    return call_decode(address, pointer(stored), values.size, pointer(values))
