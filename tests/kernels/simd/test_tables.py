from collections.abc import Callable
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.lanes import cpu_has, store
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.kernels.simd.tables import (
    CHUNKS_AT_ONCE,
    IN_DWORDS,
    LOOK_UP,
    SHORT_LOOK_UP,
    LookUp,
    bit_sums_by,
    look_up,
    look_up_of,
)
from tests.kernels.assembly import called, instructions, vector

# This CPU's own way, and those of others that it can run.
OLDER = look_up_of(llvm.get_process_triple(), lambda name: name != "avx512vbmi" and cpu_has(name))
WAYS = list({LOOK_UP, OLDER, SHORT_LOOK_UP, LookUp("", 16)})


def sums_by(way: LookUp) -> Callable[..., None]:
    """Twice the sums that sixteen rows' bits find, less seven."""
    zeros, add, total = bit_sums_by(way)

    @numba.njit
    def sums_of(rows: Any, tables: Any, out: Any) -> None:
        sums = zeros()
        for pair in range(rows.size // 128):
            sums = add(sums, pointer(rows), pointer(tables), pair)
        found = total(sums)
        store(pointer(out), 0, found + found - np.float32(7))

    return sums_of


SUMS = [sums_by(way) for way in WAYS]


@given(
    chunks=st.integers(1, CHUNKS_AT_ONCE // 2).map(lambda n: 2 * n),
    largest=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_sums_of_bits_are_exact(chunks: int, largest: bool, seed: int) -> None:
    """Up to the most chunks of the largest sums, which fit a word just so."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2, (16, 32 * chunks)).astype(np.uint8)
    codes = random.integers(0, 64, 32 * chunks)
    if largest:
        codes[:] = [64, 64, 64, 63] * (8 * chunks)
        bits[seed % 16] = 1
    subsets = np.array([[n >> bit & 1 for bit in range(4)] for n in range(16)])
    found = (codes.reshape(-1, 4) @ subsets.T).astype(np.uint8)  # [8 chunks, 16]
    halves = found.reshape(chunks, 4, 2, 16).transpose(0, 2, 1, 3)
    tables, out = np.ascontiguousarray(halves).ravel(), np.empty(16, np.float32)
    for sums_of in SUMS:
        sums_of(np.packbits(bits, axis=1, bitorder="little").T.ravel(), tables, out)
        np.testing.assert_array_equal(out, 2 * (bits @ codes) - 7)


look_here, look_anywhere = (
    called(vector(8, 16), vector(8, 16), partial(look_up, name=name))
    for name in (SHORT_LOOK_UP[0], "")
)


@kernel("(uint8[::1], uint8[::1], uint8[::1], int64)")
def look(table, codes, found, here):
    if here:
        look_here(pointer(table), pointer(codes), pointer(found))
    else:
        look_anywhere(pointer(table), pointer(codes), pointer(found))


@pytest.mark.parametrize("here", [0, 1])
def test_tables_are_looked_up_on_every_target(here: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        table = random.integers(0, 256, 16, np.uint8)
        codes, found = random.integers(0, 16, 16, np.uint8), np.empty(16, np.uint8)
        look(table, codes, found, here)
        np.testing.assert_array_equal(found, table[codes])


@pytest.mark.parametrize(
    ("machine", "cpu", "instruction"),
    [("aarch64", "neoverse-n1", "tbl"), ("x86_64", "znver3", "vpshufb")],
)
def test_a_table_is_one_instruction(machine: str, cpu: str, instruction: str) -> None:
    triple = f"{machine}-unknown-linux-gnu"
    name, _ = look_up_of(triple, lambda feature: feature == "ssse3")
    byte = vector(8, 16)
    lines = instructions(triple, cpu, [byte, byte], byte, partial(look_up, name=name))
    assert sum(line.startswith(instruction) for line in lines) == 1


def test_wide_registers_are_used_where_a_cpu_has_them_and_none_where_it_has_none() -> None:
    triple = "x86_64-unknown-linux-gnu"
    assert look_up_of(triple, lambda _: False) == ("", 16)
    assert look_up_of("riscv64-unknown-linux-gnu", lambda _: True) == ("", 16)
    assert look_up_of(triple, lambda _: True) == IN_DWORDS
    for missing in ("avx512vbmi", "avx512vnni"):
        found = look_up_of(triple, lambda name, missing=missing: name != missing)
        assert found == ("llvm.x86.avx512.pshuf.b.512", 64)
    assert look_up_of(triple, lambda name: name == "avx2") == ("llvm.x86.avx2.pshuf.b", 32)
    assert look_up_of("aarch64-unknown-linux-gnu", lambda _: True)[1] == 16
