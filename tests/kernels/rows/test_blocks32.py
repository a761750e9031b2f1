"""Q8_0 and Q4_0 by the formulas of docs/index-format.md."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.kernels.rows.decode import decoded
from tests.stored import random_blocks


def scale_at(block: bytes, place: int) -> np.float32:
    return np.float32(np.frombuffer(block[place : place + 2], "<f2")[0])


def q8_0(block: bytes, i: int) -> np.float32:
    return np.float32(np.int8(np.uint8(block[2 + i]))) * scale_at(block, 0)


def q4_0(block: bytes, i: int) -> np.float32:
    code = (block[2 + i % 16] >> 4 * (i // 16)) & 15
    return np.float32(code - 8) * scale_at(block, 0)


@pytest.mark.parametrize(("kind", "number"), [("Q8_0", q8_0), ("Q4_0", q4_0)])
def test_numbers_are_as_the_format_defines_them(kind: str, number: object) -> None:
    assert callable(number)
    matrix = random_blocks(kind, np.random.default_rng(3).standard_normal((4, 2)))
    for row, values in zip(matrix.data, decoded(matrix), strict=True):
        blocks = [bytes(block) for block in row.reshape(2, -1)]
        assert [number(block, i) for block in blocks for i in range(32)] == values.tolist()
