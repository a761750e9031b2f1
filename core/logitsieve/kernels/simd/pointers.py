"""Raw pointers for kernels, typed by their elements.

An array argument costs two atomic reference counts, so only entry kernels take arrays. They end
with `keep_alive` of these.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logitsieve.kernels.compile import emits, inline


@intrinsic
def pointer(typing_context, array):
    def codegen(context, builder, signature, arguments):
        return context.make_array(array)(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), codegen


@emits(lambda array: types.void(array))
def keep_alive(builder, array):
    """Use an array, or a tuple of them: Numba frees an array after its last use."""


def _pointer_from_address(dtype):
    @intrinsic
    def from_address(typing_context, address):
        def codegen(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(dtype)(types.int64), codegen

    return from_address


float32_pointer = _pointer_from_address(types.float32)
float64_pointer = _pointer_from_address(types.float64)
int32_pointer = _pointer_from_address(types.int32)
int64_pointer = _pointer_from_address(types.int64)
uint8_pointer = _pointer_from_address(types.uint8)


def pointer_cast(dtype):
    @intrinsic
    def cast(typing_context, start):
        def codegen(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(dtype)(start), codegen

    return cast


as_int32, as_float32 = pointer_cast(types.int32), pointer_cast(types.float32)
as_int8, as_uint8 = pointer_cast(types.int8), pointer_cast(types.uint8)
as_uint16, as_float64 = pointer_cast(types.uint16), pointer_cast(types.float64)


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
def nowhere():
    return float64_pointer(0)


@inline
def size_of(layout):
    return _address_of(layout.end) // 8
