from collections.abc import Callable
from typing import Any

import ml_dtypes
import numba
import numpy as np
import pytest
from llvmlite import ir

from logitsieve.kernels.rows.functions import STORED_TYPES
from logitsieve.kernels.rows.stored_types import F16C, Halves, floats_of_halves, half_at
from logitsieve.kernels.simd.lanes import cpu_has, load, load_first, store
from logitsieve.kernels.simd.pointers import pointer, pointer_to
from tests.kernels.assembly import instructions, vector

EVERY = np.arange(1 << 16, dtype=np.uint16)
PORTABLE = Halves("Float16 by integers", lambda *given: floats_of_halves(*given, native=False))
FORMS: list[tuple[Any, Any]] = [
    (PORTABLE, np.float16),
    (STORED_TYPES["F16"], np.float16),
    (STORED_TYPES["BF16"], ml_dtypes.bfloat16),
]
EVERY_FORM = pytest.mark.parametrize(("halves", "peer"), FORMS)


def loads_of(halves: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """Widen all halves, and the first of those that begin at the third."""
    view = pointer_to(halves)

    @numba.njit
    def widen(bits: Any, values: Any) -> None:
        for i in range(0, values.size, 16):
            store(pointer(values), i, load(view(pointer(bits)), i))

    @numba.njit
    def widen_first(bits: Any, values: Any, count: int) -> None:
        store(pointer(values), 0, load_first(view(pointer(bits)), 2, count))

    return widen, widen_first


@EVERY_FORM
def test_every_pattern_of_bits_is_widened_exactly(halves: Any, peer: Any) -> None:
    values, (widen, _) = np.empty(EVERY.size, np.float32), loads_of(halves)
    widen(EVERY.view(np.uint8), values)
    expected = EVERY.view(peer).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(values[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.isnan(values[~number]).all()


@EVERY_FORM
def test_lanes_after_the_first_are_zero(halves: Any, peer: Any) -> None:
    bits, (_, widen_first) = np.arange(0x3C00, 0x3C00 + 20, dtype=np.uint16), loads_of(halves)
    expected = bits.view(peer).astype(np.float32)[2:]
    for count in range(1, 16):
        values = np.empty(16, np.float32)
        widen_first(bits.view(np.uint8), values, count)
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
