"""Slices cover all rows once, in order, from any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from logitsieve.kernels.pool import ROWS_A_SLICE, run_slices


@pytest.mark.parametrize("rows", [1, 15, 16, 33, 100])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_slices_partition_the_rows(rows: int, threads: int) -> None:
    seen: list[tuple[int, int]] = []

    def call(start: int, stop: int) -> int:
        seen.append((start, stop))
        return start

    results = run_slices(call, rows, threads)
    assert results == sorted(results)
    assert sorted(row for start, stop in seen for row in range(start, stop)) == list(range(rows))
    assert len(seen) <= max(1, min(threads, rows // ROWS_A_SLICE))


def test_many_callers_share_the_threads() -> None:
    with ThreadPoolExecutor(8) as callers:
        sums = callers.map(
            lambda _: sum(run_slices(lambda start, stop: stop - start, 64, 2)), range(50)
        )
        assert set(sums) == {64}
