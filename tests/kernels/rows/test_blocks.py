"""Every type of blocks by the formulas of docs/index-format.md."""

from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.kernels.rows.functions import decoded
from logitsieve.utils.stored import KINDS
from tests.stored import BLOCKS, random_blocks

NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def half(block: bytes, place: int) -> np.float32:
    return np.float32(np.frombuffer(block[place : place + 2], "<f2")[0])


def half_byte(block: bytes, first: int, i: int) -> int:
    """Of 32 codes in 16 bytes."""
    return (block[first + i % 16] >> 4 * (i // 16)) & 15


def bit(block: bytes, first: int, i: int) -> int:
    return (block[first + i // 8] >> i % 8) & 1


def small(block: bytes, j: int) -> tuple[np.float32, np.float32]:
    """Scale and minimum of 32 numbers of Q4_K and Q5_K."""
    if j < 4:
        scale, minimum = block[4 + j] & 63, block[8 + j] & 63
    else:
        scale = (block[8 + j] & 15) | ((block[j] >> 2) & 48)
        minimum = (block[8 + j] >> 4) | ((block[4 + j] >> 2) & 48)
    return half(block, 0) * np.float32(scale), half(block, 2) * np.float32(minimum)


def q8_0(block: bytes, i: int) -> np.float32:
    return np.float32(np.int8(np.uint8(block[2 + i]))) * half(block, 0)


def q4_0(block: bytes, i: int) -> np.float32:
    return np.float32(half_byte(block, 2, i) - 8) * half(block, 0)


def q4_1(block: bytes, i: int) -> np.float32:
    return np.float32(half_byte(block, 4, i)) * half(block, 0) + half(block, 2)


def q5_0(block: bytes, i: int) -> np.float32:
    return np.float32(half_byte(block, 6, i) + 16 * bit(block, 2, i) - 16) * half(block, 0)


def q5_1(block: bytes, i: int) -> np.float32:
    code = half_byte(block, 8, i) + 16 * bit(block, 4, i)
    return np.float32(code) * half(block, 0) + half(block, 2)


def iq4_nl(block: bytes, i: int) -> np.float32:
    return np.float32(NON_LINEAR[half_byte(block, 2, i)]) * half(block, 0)


def q6_k(block: bytes, i: int) -> np.float32:
    a, r = divmod(i, 128)
    low = (block[64 * a + r % 64] >> 4 * (r // 64)) & 15
    high = (block[128 + 32 * a + r % 32] >> 2 * (r // 32)) & 3
    scale = half(block, 208) * np.float32(np.int8(np.uint8(block[192 + i // 16])))
    return np.float32(low + 16 * high - 32) * scale


def q4_k(block: bytes, i: int) -> np.float32:
    code = (block[16 + 32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2)) & 15
    scale, minimum = small(block, i // 32)
    return np.float32(code) * scale - minimum


def q5_k(block: bytes, i: int) -> np.float32:
    low = (block[48 + 32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2)) & 15
    high = (block[16 + i % 32] >> (i // 32)) & 1
    scale, minimum = small(block, i // 32)
    return np.float32(low + 16 * high) * scale - minimum


FORMULAS: dict[str, Callable[[bytes, int], np.float32]] = {
    "Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "IQ4_NL": iq4_nl,
    "Q6_K": q6_k, "Q4_K": q4_k, "Q5_K": q5_k,
}  # fmt: skip


@pytest.mark.parametrize("kind", BLOCKS)
def test_numbers_are_as_the_format_defines_them(kind: str) -> None:
    matrix = random_blocks(kind, np.random.default_rng(3).standard_normal((4, 2)))
    size = KINDS[kind].values
    for row, values in zip(matrix.data, decoded(matrix), strict=True):
        blocks = [bytes(block) for block in row.reshape(2, -1)]
        expected = [FORMULAS[kind](block, i) for block in blocks for i in range(size)]
        assert expected == values.tolist()
