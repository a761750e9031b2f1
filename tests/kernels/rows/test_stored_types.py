import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.rows.functions import STORED_TYPES
from logitsieve.kernels.rows.stored_types import F16C, Halves, floats_of_halves, half_at
from logitsieve.kernels.simd.lanes import cpu_has, load, load_first, store
from logitsieve.kernels.simd.pointers import pointer, pointer_to
from tests.kernels.assembly import instructions, vector

EVERY = np.arange(1 << 16, dtype=np.uint16)
PORTABLE = Halves("Float16 by integers", lambda *given: floats_of_halves(*given, native=False))
HALVES = PORTABLE, STORED_TYPES["F16"], STORED_TYPES["BF16"]
as_portable, as_float16, as_bfloat16 = map(pointer_to, HALVES)


@kernel("(uint8[::1], float32[::1], int64)")
def widen(bits, values, how):
    for i in range(0, values.size, 16):
        if how == 0:
            store(pointer(values), i, load(as_portable(pointer(bits)), i))
        elif how == 1:
            store(pointer(values), i, load(as_float16(pointer(bits)), i))
        else:
            store(pointer(values), i, load(as_bfloat16(pointer(bits)), i))


@kernel("(uint8[::1], float32[::1], int64, int64)")
def widen_first(bits, values, count, how):
    if how == 0:
        store(pointer(values), 0, load_first(as_portable(pointer(bits)), 2, count))
    elif how == 1:
        store(pointer(values), 0, load_first(as_float16(pointer(bits)), 2, count))
    else:
        store(pointer(values), 0, load_first(as_bfloat16(pointer(bits)), 2, count))


FORMS = {"integers": (0, np.float16), "f16c": (1, np.float16), "bfloat16": (2, ml_dtypes.bfloat16)}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


@EVERY_FORM
def test_every_pattern_of_bits_is_widened_exactly(form: str) -> None:
    (how, peer), values = FORMS[form], np.empty(EVERY.size, np.float32)
    widen(EVERY.view(np.uint8), values, how)
    expected = EVERY.view(peer).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(values[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.isnan(values[~number]).all()


@EVERY_FORM
def test_lanes_after_the_first_are_zero(form: str) -> None:
    how, peer = FORMS[form]
    bits = np.arange(0x3C00, 0x3C00 + 20, dtype=np.uint16)
    expected = bits.view(peer).astype(np.float32)[2:]
    for count in range(1, 16):
        values = np.empty(16, np.float32)
        widen_first(bits.view(np.uint8), values, count, how)
        np.testing.assert_array_equal(values[:count], expected[:count])
        assert not values[count:].any()


def test_the_instruction_is_used_where_the_cpu_has_it() -> None:
    assert cpu_has("f16c") == F16C


@pytest.mark.parametrize("cpu", ["haswell", "znver4"])
def test_a_half_is_loaded_without_waiting_for_a_register(cpu: str) -> None:
    floats = ir.VectorType(ir.FloatType(), 8)

    def build(builder: ir.IRBuilder, code: ir.Value) -> ir.Value:
        start = builder.bitcast(code.operands[0], ir.IntType(8).as_pointer())
        return half_at(builder, start, ir.Constant(ir.IntType(64), 6), floats)

    lines = instructions("x86_64-unknown-linux-gnu", cpu, [vector(16, 8)], floats, build)
    assert any(line.startswith("vpbroadcastw") for line in lines)
    assert not any(line.startswith("vpinsrw") for line in lines)  # keeps a register's other lanes
