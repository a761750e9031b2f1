"""Raw pointers for kernels, typed by their elements.

An array argument costs Numba two atomic reference counts in each function, so only entry kernels
take arrays. A pointer is valid only while its array is alive: the entry kernel ends with
`keep_alive` of its arrays.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def pointer(typing_context, array):
    """The address of an array's first element, typed by its dtype."""

    def codegen(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def keep_alive(typing_context, array):
    """Use an array, or a tuple of them: Numba frees an array after its last use."""

    def codegen(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.void(array), codegen


def _pointer_from_address(dtype):
    @intrinsic
    def from_address(typing_context, address):
        def codegen(context, builder, signature, arguments):
            target = context.get_value_type(signature.return_type)
            return builder.inttoptr(arguments[0], target)

        return types.CPointer(dtype)(types.int64), codegen

    return from_address


float32_pointer = _pointer_from_address(types.float32)
float64_pointer = _pointer_from_address(types.float64)
int32_pointer = _pointer_from_address(types.int32)
int64_pointer = _pointer_from_address(types.int64)
uint8_pointer = _pointer_from_address(types.uint8)


def pointer_cast(dtype):
    """cast(start): the same address as a pointer to another type."""

    @intrinsic
    def cast(typing_context, start):
        def codegen(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(dtype)(start), codegen

    return cast


as_int32, as_float32 = pointer_cast(types.int32), pointer_cast(types.float32)
as_int8, as_uint8 = pointer_cast(types.int8), pointer_cast(types.uint8)
as_uint16 = pointer_cast(types.uint16)
as_float64 = pointer_cast(types.float64)


@intrinsic
def float64_of_bits(typing_context, bits):
    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def shift(typing_context, start, count):
    """The pointer `count` elements after `start`."""

    def codegen(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return start(start, types.intp), codegen
