"""Raw pointers for kernels, typed by their elements.

An array argument costs two atomic reference counts, so only entry kernels take arrays. They end
with `keep_alive`, as Numba frees an array after its last use.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logitsieve.kernels.compile import emits, inline

CACHE_LINE = 64  # bytes; defined here, as only sources of kernels key the cache of machine code


@intrinsic
def pointer(typing_context, array):
    def codegen(context, builder, signature, arguments):
        return context.make_array(array)(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), codegen


@emits(lambda array: types.void(array))
def keep_alive(builder, array):
    """Use an array or a tuple of arrays."""


def pointer_to(dtype):
    """Return to(start), which makes an address or another pointer a pointer to `dtype`."""

    @intrinsic
    def to(typing_context, start):
        address = isinstance(start, types.Integer)

        def codegen(context, builder, signature, arguments):
            kind = context.get_value_type(signature.return_type)
            return (builder.inttoptr if address else builder.bitcast)(arguments[0], kind)

        return types.CPointer(dtype)(types.int64 if address else start), codegen

    return to


float32_pointer = as_float32 = pointer_to(types.float32)
float64_pointer = pointer_to(types.float64)
int32_pointer = as_int32 = pointer_to(types.int32)
uint8_pointer = as_uint8 = pointer_to(types.uint8)
int64_pointer = as_int64 = pointer_to(types.int64)
as_int8, as_uint16 = pointer_to(types.int8), pointer_to(types.uint16)
as_uint64 = pointer_to(types.uint64)


@emits(lambda bits: types.float64(types.int64))
def float64_of_bits(builder, bits):
    return builder.bitcast(bits, ir.DoubleType())


@emits(lambda start, count: start(start, types.intp))
def shift(builder, start, count):
    return builder.gep(start, [count])


@emits(lambda start: types.int64(start))
def _address_of(builder, start):
    return builder.ptrtoint(start, ir.IntType(64))


@inline
def aligned(start):
    """Return the first cache line from `start` on."""
    return shift(start, (-_address_of(start) & CACHE_LINE - 1) // 8)


@inline
def nowhere():
    return float64_pointer(0)


@inline
def size_of(layout):
    return _address_of(layout.end) // 8
