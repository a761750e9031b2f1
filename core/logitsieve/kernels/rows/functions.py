"""Functions that read stored rows. Kernels call them by address.

Each is compiled for a type of rows when that is first used, not into every kernel.
"""

from functools import cache

import numpy as np
from llvmlite import ir
from numba import types

from logitsieve.api.results import Float32, Int64
from logitsieve.kernels.compile import CFunction, emits, kernel
from logitsieve.kernels.rows.blocks import READERS, Blocks
from logitsieve.kernels.rows.products import SPAN, coded_dots, coded_few
from logitsieve.kernels.rows.stored_types import FLOAT16, Halves, floats_of_bfloats
from logitsieve.kernels.simd.dots import dot64, few_dots
from logitsieve.kernels.simd.lanes import (
    INT32,
    LANES,
    LANES32,
    StoredType,
    first_lanes_mask,
    intrinsic_call,
    load,
    load_first,
    store,
    vector_at,
)
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.utils.floats import aligned, widened
from logitsieve.utils.stored import KINDS, StoredMatrix

STORED_TYPES: dict[str, StoredType] = {
    "F16": FLOAT16,
    "BF16": Halves("BFloat16", floats_of_bfloats),
    **{kind: Blocks(kind) for kind in READERS},
}
# F32 rows are read in place, others by functions. Codes of CODED and COSTLY rows can be multiplied
# with a query's codes; COSTLY rows take longer to decode.
F32, STORED, CODED, COSTLY = range(4)
DECODE, DOT, DOTS, MAGNITUDES, CODED_DOTS, CODED_FEW = range(6)
_PLACES = [types.int64] * 4


@emits(lambda start, *_: types.void(start, types.intp, types.intp, LANES32))
def store_first(builder, start, offset, count, lanes):
    """Write the first lanes to start[offset : offset + count]."""
    address, mask = vector_at(builder, start, offset, lanes.type), first_lanes_mask(builder, count)
    arguments = [lanes, address, ir.Constant(INT32, 4), mask]
    intrinsic_call(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), arguments)


def decode(stored, count, values):
    end = count - count % LANES
    for i in range(0, end, LANES):
        store(values, i, load(stored, i))
    if end < count:
        store_first(values, end, count - end, load_first(stored, end, count - end))
    return count


def dots(stored, i, j, k, m, hidden, h0, h1, h2, h3, count, dim, sums):
    few_dots(stored, i, j, k, m, hidden, h0, h1, h2, h3, count, dim, sums)
    return dim


def _pointers(*kinds):
    return [types.CPointer(kind) for kind in kinds]


@cache
def functions_of(kind: str) -> tuple[CFunction, ...]:
    stored, floats, doubles = _pointers(STORED_TYPES[kind], types.float32, types.float64)
    size = types.int64
    coded = size(stored, *_PLACES, floats, size, floats)
    functions = [
        CFunction(decode, size(stored, size, floats)),
        CFunction(dot64.py_func, types.float64(stored, doubles, size)),
        CFunction(dots, size(stored, *_PLACES, floats, *_PLACES, size, size, floats)),
    ]
    if kind in READERS:
        [magnitudes] = _pointers(Blocks(kind, magnitudes=True))
        functions.append(CFunction(decode, size(magnitudes, size, floats)))
        few = size(stored, size, floats, floats, *_PLACES, size, floats, size)
        functions += [CFunction(coded_dots, coded), CFunction(coded_few, few)]
    return tuple(functions)


def way_of(kind: str) -> int:
    if (reader := READERS.get(kind)) is None:
        return F32 if kind == "F32" else STORED
    return CODED if reader.low is None and reader.span == SPAN else COSTLY


@cache
def addresses(kind: str) -> Int64:
    return np.array([function.address for function in functions_of(kind)], np.int64)


def _call(builder, address, result, arguments):
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


@emits(lambda address, stored, count, values: types.int64(address, stored, types.int64, values))
def call_decode(builder, address, stored, count, values):
    return _call(builder, address, ir.IntType(64), [stored, count, values])


@emits(lambda address, row, h64, dim: types.float64(address, row, h64, types.int64))
def call_dot(builder, address, row, h64, dim):
    return _call(builder, address, ir.DoubleType(), [row, h64, dim])


@emits(
    lambda _, stored, *others: types.int64(
        types.int64, stored, *_PLACES, others[4], *_PLACES, types.int64, types.int64, others[4]
    )
)
def call_dots(builder, address, stored, i, j, k, m, hidden, h0, h1, h2, h3, count, dim, sums):
    arguments = [stored, i, j, k, m, hidden, h0, h1, h2, h3, count, dim, sums]
    return _call(builder, address, ir.IntType(64), arguments)


@emits(
    lambda _, stored, *others: types.int64(
        types.int64, stored, *_PLACES, others[4], types.int64, others[4]
    )
)
def call_coded_dots(builder, address, stored, i, j, k, m, codes, dim, sums):
    return _call(builder, address, ir.IntType(64), [stored, i, j, k, m, codes, dim, sums])


@emits(
    lambda _, stored, rows, floats, *others: types.int64(
        types.int64, stored, types.int64, floats, floats, *_PLACES, types.int64, floats, types.int64
    )
)
def call_few(builder, address, stored, rows, bias, codes, j, k, m, count, dim, logits, apart):
    arguments = [stored, rows, bias, codes, j, k, m, count, dim, logits, apart]
    return _call(builder, address, ir.IntType(64), arguments)


def decoded(matrix: StoredMatrix) -> Float32:
    """Return a stored matrix as float32 [V, D]; F32 is not copied."""
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
    return call_decode(address, pointer(stored), values.size, pointer(values))
