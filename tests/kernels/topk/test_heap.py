"""The running top k keeps the k best under the total order, in any order of arrival."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.kernels.topk.heap import contains, offer, sort_best_first


@kernel("(float64[::1], float64[::1], int32[::1])")
def keep_best(offered, values, rows):
    size = 0
    for row in range(offered.size):
        size = offer(pointer(values), pointer(rows), size, values.size, offered[row], row)
    sort_best_first(pointer(values), pointer(rows), size)
    return size


@kernel("(int32[::1], int64, int64)")
def holds(rows, size, row):
    return contains(pointer(rows), size, row)


@given(offered=st.lists(st.integers(-3, 3), min_size=1, max_size=40), limit=st.integers(1, 45))
def test_the_k_best_come_out_best_first_and_ties_by_the_lower_row(
    offered: list[int], limit: int
) -> None:
    values, rows = np.empty(limit), np.empty(limit, np.int32)
    size = keep_best(np.array(offered, np.float64), values, rows)
    expected = sorted(range(len(offered)), key=lambda row: (-offered[row], row))[:limit]
    assert size == len(expected)
    assert rows[:size].tolist() == expected
    assert values[:size].tolist() == [offered[row] for row in expected]


def test_contains_looks_at_the_kept_rows_only() -> None:
    rows = np.array([4, 7, 9], np.int32)
    assert holds(rows, 2, 7)
    assert not holds(rows, 2, 9)
