from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.heads.sketch import MAX_CODE_BYTES
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.byte_lanes import (
    AVX512_VNNI,
    AVX_VNNI,
    FORM,
    NEON_DOT,
    OTHER,
    X86,
    Form,
    form_of,
    join_planes_by,
    multiply_by,
    scale_sums,
    store_bytes,
    store_words,
    zero_sums,
)
from logitsieve.kernels.simd.lanes import cpu_has, load, store
from logitsieve.kernels.simd.pointers import as_int8, pointer
from tests.kernels.assembly import instructions, vector

RUNNABLE = list({FORM, X86, OTHER} | ({AVX_VNNI} if cpu_has("avxvnni") else set()))


def planes_of(form: Form, codes: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The planes of codes + low: of words, or `codes` / 128 and `low` as they are."""
    if not form.words:
        return (codes // 128).astype(np.int8), low.astype(np.int8)
    quads = (codes + low).astype(np.int16).reshape(-1, 4)
    first, second = np.ascontiguousarray(quads[:, ::2]), np.ascontiguousarray(quads[:, 1::2])
    return first.view(np.int8).ravel(), second.view(np.int8).ravel()


def sums_by(form: Form) -> tuple[Callable[..., None], Callable[..., None]]:
    """Sums of sixteen rows' products with codes of eight bits and of fifteen, less a correction."""
    multiply_bytes, join_planes = multiply_by(form), join_planes_by(form)

    @numba.njit
    def sums_of_one(rows: Any, first: Any, second: Any, less: int, out: Any) -> None:
        sums = zero_sums()
        for quad in range(rows.size // 64):
            sums = multiply_bytes(sums, pointer(rows), pointer(first), pointer(second), quad)
        store(pointer(out), 0, scale_sums(sums, less, load(pointer(out), 0)))

    @numba.njit
    def sums_of_two(rows: Any, first: Any, second: Any, less: int, out: Any) -> None:
        sums = zero_sums(), zero_sums()
        for quad in range(rows.size // 64):
            sums = multiply_bytes(sums, pointer(rows), pointer(first), pointer(second), quad)
        store(pointer(out), 0, scale_sums(join_planes(sums), less, load(pointer(out), 0)))

    return sums_of_one, sums_of_two


SUMS = [(form, *sums_by(form)) for form in RUNNABLE]


@given(
    quads=st.integers(1, MAX_CODE_BYTES // 4),
    rows=st.sampled_from([0, 1, 127, 128, 255, None]),
    query=st.sampled_from([-127, -1, 0, 127, None]),
    seed=st.integers(0, 1000),
)
def test_byte_sums_are_exact(quads: int, rows: int | None, query: int | None, seed: int) -> None:
    """Up to the widest rows of the largest codes: products with unsigned bytes exceed 32 bits."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (quads, 16, 4)).astype(np.uint8)
    values = random.integers(-127, 128, quads * 4)
    if rows is not None:
        codes[:] = rows
    if query is not None:
        values[:] = query
    lows = random.integers(-64, 65, values.size)
    for form, one, two in SUMS:
        signed = codes.astype(np.int64) - 128
        # One plane of bytes holds codes of eight bits themselves.
        first, second = planes_of(form, values if form.words else 128 * values, 0 * lows)
        for sums, planes, query_codes in (
            (one, (first, second), values),
            (two, planes_of(form, 128 * values, lows), 128 * values + lows),
        ):
            out = np.ones(16, np.float32)
            sums(codes.ravel(), *planes, form.offset * int(query_codes.sum()), out)
            wanted = (signed * query_codes.reshape(quads, 1, 4)).sum(axis=(0, 2))
            np.testing.assert_array_equal(out, wanted.astype(np.float32))


@kernel("(float32[::1], int8[::1], int16[::1], int16[::1])")
def store_both(values: Any, codes: Any, first: Any, second: Any) -> None:
    store_bytes(pointer(codes), 16, load(pointer(values), 0))
    store_words(as_int8(pointer(first)), as_int8(pointer(second)), 16, load(pointer(values), 0))


def test_codes_are_stored_as_bytes_and_as_words() -> None:
    values = np.random.default_rng(0).permutation(np.arange(-128, 128))[:16]
    codes, first, second = np.zeros(48, np.int8), np.zeros(24, np.int16), np.zeros(24, np.int16)
    store_both(values.astype(np.float32), codes, first, second)
    np.testing.assert_array_equal(codes, np.pad(values, 16))
    np.testing.assert_array_equal(first, np.pad(values.reshape(4, 4)[:, ::2].ravel(), 8))
    np.testing.assert_array_equal(second, np.pad(values.reshape(4, 4)[:, 1::2].ravel(), 8))


def assembly(form: Form, triple: str, cpu: str) -> list[str]:
    """What 64 products with a row become."""
    total, rows = vector(32, 16), vector(8, 64)
    return instructions(triple, cpu, [total, rows, total, total], total, form.products)


CPUS = [
    ("x86_64", "x86-64", "", X86, "pmaddwd", "xmm", 8),
    ("x86_64", "znver3", "avx2", X86, "vpmaddwd", "ymm", 4),
    ("x86_64", "skylake-avx512", "avx512bw", X86, "vpmaddwd", "zmm", 2),
    ("x86_64", "alderlake", "avxvnni", AVX_VNNI, "vpdpbusd", "ymm", 2),
    ("x86_64", "znver4", "avx512vnni", AVX512_VNNI, "vpdpbusd", "zmm", 1),
    ("x86_64", "znver5", "avx512vnni avxvnni", AVX512_VNNI, "vpdpbusd", "zmm", 1),
    ("aarch64", "neoverse-n1", "dotprod", NEON_DOT, "sdot", "v", 4),
    ("aarch64", "cortex-a57", "", OTHER, "smlal", "v", 8),
]


@pytest.mark.parametrize(
    ("machine", "cpu", "features", "form", "instruction", "register", "times"), CPUS
)
def test_every_cpu_multiplies_by_its_own_instruction(
    machine: str, cpu: str, features: str, form: Form, instruction: str, register: str, times: int
) -> None:
    triple = f"{machine}-unknown-linux-gnu"
    assert form_of(triple, features.split().__contains__) is form
    lines = assembly(form, triple, cpu)
    products = [line for line in lines if line.startswith((instruction, f"{instruction}2"))]
    assert len(products) == times
    assert all(register in line for line in products)
    assert not any("mulld" in line or line.startswith("mul") for line in lines)
