"""Q6_K and Q4_K by the formulas of docs/index-format.md."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.kernels.rows.decode import decoded
from tests.kernels.rows.test_blocks32 import scale_at
from tests.stored import random_blocks


def q6_k(block: bytes, i: int) -> np.float32:
    a, r = divmod(i, 128)
    low = (block[64 * a + r % 64] >> 4 * (r // 64)) & 15
    high = (block[128 + 32 * a + r % 32] >> 2 * (r // 32)) & 3
    scale = scale_at(block, 208) * np.float32(np.int8(np.uint8(block[192 + i // 16])))
    return np.float32(low + 16 * high - 32) * scale


def q4_k(block: bytes, i: int) -> np.float32:
    code, j = (block[16 + 32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2)) & 15, i // 32
    if j < 4:
        scale, minimum = block[4 + j] & 63, block[8 + j] & 63
    else:
        scale = (block[8 + j] & 15) | ((block[j] >> 2) & 48)
        minimum = (block[8 + j] >> 4) | ((block[4 + j] >> 2) & 48)
    product = np.float32(code) * (scale_at(block, 0) * np.float32(scale))
    return product - scale_at(block, 2) * np.float32(minimum)


@pytest.mark.parametrize(("kind", "number"), [("Q6_K", q6_k), ("Q4_K", q4_k)])
def test_numbers_are_as_the_format_defines_them(kind: str, number: object) -> None:
    assert callable(number)
    matrix = random_blocks(kind, np.random.default_rng(3).standard_normal((4, 2)))
    for row, values in zip(matrix.data, decoded(matrix), strict=True):
        blocks = [bytes(block) for block in row.reshape(2, -1)]
        assert [number(block, i) for block in blocks for i in range(256)] == values.tolist()
