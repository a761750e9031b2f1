"""Rows of float16 and of bfloat16: float32 holds the values of both."""

from __future__ import annotations

from llvmlite import ir
from numba.extending import register_model

from logitsieve.kernels.rows.stored_types import (
    F16C,
    FLOATS,
    INT32,
    INTEGERS,
    WORDS,
    StoredModel,
    floats_of_halves,
    load_at,
)
from logitsieve.kernels.simd.lanes import LANES, StoredType, first_lanes_mask


class _Halves(StoredType):
    """Numbers of two bytes each."""

    def emit_load(self, builder, start, offset):
        return self.widened(builder, load_at(builder, start, builder.add(offset, offset), WORDS))

    def emit_load_first(self, builder, start, offset, count):
        address = builder.bitcast(
            builder.gep(start, [builder.add(offset, offset)]), WORDS.as_pointer()
        )
        mask = first_lanes_mask(builder, count)
        masked_load = builder.module.declare_intrinsic(
            "llvm.masked.load.v16i16.p0",
            fnty=ir.FunctionType(WORDS, [address.type, INT32, mask.type, WORDS]),
        )
        arguments = [address, ir.Constant(INT32, 1), mask, ir.Constant(WORDS, None)]
        return self.widened(builder, builder.call(masked_load, arguments))


class Float16(_Halves):
    """float16, by the CPU's own instruction where it is `native`."""

    def __init__(self, native=F16C):
        self._native = native
        super().__init__(name=f"Float16({native})")

    def widened(self, builder, halves):
        return floats_of_halves(builder, halves, self._native)


class BFloat16(_Halves):
    """bfloat16: the upper halves of float32."""

    def __init__(self):
        super().__init__(name="BFloat16")

    def widened(self, builder, halves):
        wide = builder.zext(halves, INTEGERS)
        return builder.bitcast(builder.shl(wide, ir.Constant(INTEGERS, [16] * LANES)), FLOATS)


register_model(Float16)(StoredModel)
register_model(BFloat16)(StoredModel)
