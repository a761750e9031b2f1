import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.workers import Shared, SharingExecutor, Workers, in_threads
from tests.refusals import refused

ROWS = np.arange(40.0).reshape(10, 4)


def scaled(rows: np.ndarray, factor: float) -> np.ndarray:
    return rows * factor


def row_sum(rows: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    return rows[row].sum(), np.array(os.getpid())


def refuse(rows: np.ndarray, row: int) -> None:
    raise InvalidRequest(f"hidden_states[{row}]", "NaN", "finite values")


def twice_of_rows() -> Shared[np.ndarray]:
    return Shared(2 * ROWS, scaled, (ROWS,), (2.0,))


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool


def calls(rows: int = 10) -> list[tuple[Any, ...]]:
    shared = twice_of_rows()
    return [(shared, row) for row in range(rows)]


def sums(workers: Workers) -> list[float]:
    return [float(result[0]) for result in workers.map(row_sum, calls())]


EXPECTED = (2 * ROWS).sum(axis=1).tolist()


def test_results_come_in_order_from_other_processes(processes: Executor, tmp_path: Path) -> None:
    assert sums(Workers()) == EXPECTED
    with ThreadPoolExecutor(3) as pool:
        assert sums(Workers(pool)) == EXPECTED
    (tmp_path / "sums").mkdir()
    assert sums(Workers(processes, tmp_path / "sums")) == EXPECTED
    workers = Workers(processes, tmp_path)
    for _ in range(2):
        pids = {int(pid) for _, pid in workers.map(row_sum, calls())}
        assert os.getpid() not in pids
    assert [file.name for file in tmp_path.glob("*.npy")] == ["shared-0.npy"]
    with refused("hidden_states[0]"):
        list(Workers(processes, tmp_path).map(refuse, calls()))


class Counting(SharingExecutor):
    """Shares arrays by itself; its calls are made at once."""

    def __init__(self) -> None:
        self.shared: list[np.ndarray] = []
        self.begun = 0

    @property
    def workers(self) -> int:
        return 2

    def share(self, array: np.ndarray) -> Any:
        self.shared.append(array)
        return array

    def submit(self, call: Any, /, *args: Any, **options: Any) -> Any:
        self.begun += 1
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call, *args)


def test_executors_may_share_arrays_and_calls_begin_when_they_are_needed(tmp_path: Path) -> None:
    executor = Counting()
    assert sums(Workers(executor)) == EXPECTED
    assert len(executor.shared) == 1
    assert executor.shared[0] is ROWS
    executor = Counting()
    results = Workers(executor).map(row_sum, calls())
    next(results)
    assert executor.begun == 5
    results.close()  # type: ignore[attr-defined]
    with in_threads(None, 1) as alone, in_threads(None, 3) as threads:
        assert alone is None
        assert isinstance(threads, ThreadPoolExecutor)
    with in_threads(executor, 3) as given:
        assert given is executor
