"""Tasks of Ray give the bytes of one thread, also where workers are killed."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index
from logitsieve.index_builder.fitting import label_block
from logitsieve.index_builder.workers import Shared, Workers
from tests.index_builder.building import build_small, files, judged

pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
from logitsieve.ray import building as module
from logitsieve.ray.building import RayExecutor, RayFailed

pytestmark = pytest.mark.ray
ROWS = np.arange(40.0).reshape(10, 4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """A build in one thread."""
    return build_small(tmp_path_factory.mktemp("alone") / "lm" / "1")


def as_it_is(rows: np.ndarray) -> np.ndarray:
    return rows


def row_of(rows: np.ndarray, row: int) -> tuple[np.ndarray, int]:
    return rows[row], os.getpid()


def refuse(rows: np.ndarray, row: int) -> None:
    raise InvalidRequest(f"hidden_states[{row}]", "NaN", "finite values")


def die(*others: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_calls_and_errors_are_of_other_processes_in_their_order(cluster: None) -> None:
    executor, shared = RayExecutor(), Shared(ROWS, as_it_is, (ROWS,))
    assert executor.workers == 4
    results = list(Workers(executor).map(row_of, ((shared, row) for row in range(10))))
    np.testing.assert_array_equal([row for row, _ in results], ROWS)
    assert os.getpid() not in {pid for _, pid in results}
    shared = Shared(ROWS, as_it_is, (ROWS,))
    with pytest.raises(InvalidRequest) as caught:
        list(Workers(RayExecutor()).map(refuse, [(shared, 7)]))
    assert type(caught.value) is InvalidRequest
    assert caught.value.field == "hidden_states[7]"


def test_workers_always_killed_end_a_build(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 1)
    with pytest.raises(RayFailed, match="ray: ") as caught:
        RayExecutor().submit(die).result()
    assert isinstance(caught.value, BrokenExecutor)


def test_a_worker_of_another_version_fails(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__version__", "0.0.7")
    with pytest.raises(InvalidRequest, match=r"ray: got a worker with logitsieve .*, allowed: 0.0"):
        RayExecutor().submit(os.getpid).result()


@pytest.mark.parametrize("cpus", [4.0, 2.0, 4 / 3])
def test_workers_give_equal_bytes(cluster: None, cpus: float, alone: Index, tmp_path: Path) -> None:
    index = build_small(tmp_path / "lm" / "1", RayExecutor(cpus))
    assert files(index) == files(alone)
    assert judged(index) == judged(alone)


class Killing(RayExecutor):
    """Kills the worker of every third call when it is made for the first time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self.calls = folder, 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self.calls += 1
        if self.calls % 3 == 1 and args[0] is label_block:
            call = partial(killed_once, self._folder / str(self.calls), call)
        return super().submit(call, *args, **options)


def killed_once(flag: Path, call: Callable[..., Any], *args: Any) -> Any:
    if not flag.exists():
        flag.touch()
        die()
    return call(*args)


def test_blocks_of_killed_workers_are_redone(cluster: None, alone: Index, tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    flags.mkdir()
    index = build_small(tmp_path / "lm" / "1", Killing(flags))
    assert len(list(flags.iterdir())) >= 3
    assert files(index) == files(alone)
