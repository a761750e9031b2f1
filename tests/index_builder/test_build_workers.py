import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index
from logitsieve.index_builder.fitting import label_block
from logitsieve.index_builder.workers import SharingExecutor
from tests.index_builder.building import CONFIG, Watched, build_small, files, judged
from tests.refusals import refused


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """A build in one thread."""
    return build_small(tmp_path_factory.mktemp("alone") / "lm" / "1")


def assert_same(index: Index, alone: Index) -> None:
    assert (files(index), judged(index)) == (files(alone), judged(alone))
    assert [path.name for path in index.path.parent.iterdir()] == ["1"]
    assert [path.name for path in index.path.parents[1].iterdir()] == ["lm"]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_give_the_same_bytes(threads: int, alone: Index, tmp_path: Path) -> None:
    with ThreadPoolExecutor(threads) as pool:
        assert_same(build_small(tmp_path / "lm" / "1", pool), alone)


def test_calls_may_end_in_any_order(alone: Index, tmp_path: Path) -> None:
    assert_same(build_small(tmp_path / "lm" / "1", Shuffled()), alone)


def test_processes_and_threads_change_only_the_manifest(alone: Index, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert_same(build_small(tmp_path / "lm" / "1", pool), alone)
    index = build_small(tmp_path / "lm" / "2", config=replace(CONFIG, threads=2))
    written, expected = files(index), files(alone)
    del written["manifest.json"], expected["manifest.json"]
    assert written == expected


@pytest.mark.parametrize(
    "error", [InvalidRequest("weight", "nothing", "rows"), KeyboardInterrupt()]
)
def test_an_error_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    blocks = count()

    def fail(call: Any) -> None:
        if call is label_block and next(blocks) == 6:
            raise error

    with Watched(fail) as pool, pytest.raises(type(error)):
        build_small(tmp_path / "lm" / "1", pool)
    assert not list(tmp_path.iterdir())


def test_a_search_is_not_reproducible_and_a_lost_process_ends_the_build(tmp_path: Path) -> None:
    with refused("reproducible"):
        build_small(tmp_path / "lm" / "1", target_precision={"p1": 0.9})
    with Dying(2, get_context("spawn")) as pool, pytest.raises(BrokenProcessPool):
        build_small(tmp_path / "lm" / "1", pool)


class Shuffled(SharingExecutor):
    """Makes the calls that wait in random order, once a result is asked for."""

    workers = 4

    def __init__(self) -> None:
        self.random, self.waiting = np.random.default_rng(0), list[Late]()

    def share(self, array: np.ndarray) -> Any:
        return array

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self.waiting.append(Late(self, partial(call, *args, **options)))
        return self.waiting[-1]

    def end(self) -> None:
        waiting, self.waiting = self.waiting, []
        for place in self.random.permutation(len(waiting)):
            waiting[place].set_result(waiting[place].call())


class Late(Future[Any]):
    def __init__(self, executor: Shuffled, call: Callable[[], Any]) -> None:
        super().__init__()
        self.executor, self.call = executor, call

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.executor.end()
        return super().result(timeout)


class Dying(ProcessPoolExecutor):
    """Two processes, one of which ends in a call for labels."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        if args[0] is label_block:
            return super().submit(os.abort)
        return super().submit(call, *args, **options)
