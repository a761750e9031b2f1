"""A build gives the same bytes whichever workers make its calls, and however often it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index
from logitsieve.index_builder.labels import best_of_shard
from tests.index_builder.building import CONFIG, build_small, files, judged
from tests.index_builder.clustered import make_contexts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, share_kernels: Callable[[Path], Path]) -> Index:
    """A build in one thread."""
    home = tmp_path_factory.mktemp("home")
    share_kernels(home / ".cache" / "logitsieve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        return build_small(tmp_path_factory.mktemp("alone") / "lm" / "1")


def assert_same(index: Index, alone: Index) -> None:
    assert files(index) == files(alone)
    assert judged(index) == judged(alone)
    assert [path.name for path in index.path.parent.iterdir()] == ["1"]
    assert [path.name for path in index.path.parents[1].iterdir()] == ["lm"]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_give_the_same_bytes(threads: int, alone: Index, tmp_path: Path) -> None:
    with ThreadPoolExecutor(threads) as pool:
        assert_same(build_small(tmp_path / "lm" / "1", pool), alone)


def test_processes_give_the_same_bytes(alone: Index, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        assert_same(build_small(tmp_path / "lm" / "1", pool), alone)


def test_a_thread_for_each_core_changes_only_what_the_manifest_says_of_it(
    alone: Index, tmp_path: Path
) -> None:
    index = build_small(tmp_path / "lm" / "1", config=replace(CONFIG, threads=2))
    written, expected = files(index), files(alone)
    del written["manifest.json"], expected["manifest.json"]
    assert written == expected


class Watching(ThreadPoolExecutor):
    """Counts the blocks of labels that are computed, and fails at some."""

    def __init__(self, error: BaseException | None = None, at: int = -1) -> None:
        super().__init__(1)
        self.labels, self._error, self._at = 0, error, at

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        if call is best_of_shard:
            if self.labels == self._at:
                assert self._error is not None
                raise self._error
            self.labels += 1
        return super().submit(call, *args, **options)


BLOCKS = 10  # of labels


def kept(folder: Path) -> list[Path]:
    """Files of finished blocks."""
    return sorted(file for work in folder.glob(".tmp-build-*") for file in work.glob("l*-*[0-9]"))


@pytest.mark.parametrize(("stage", "done"), [("label", 4096), ("judge", 512)])
def test_a_killed_build_goes_on_from_what_is_on_disk(
    stage: str, done: int, alone: Index, tmp_path: Path
) -> None:
    """Also if it is killed again, and a block has become unreadable."""
    out = tmp_path / "lm" / "1"
    command = [sys.executable, "-m", "tests.index_builder.building", str(out), stage, str(done)]
    died = subprocess.run(command, cwd=ROOT, timeout=120, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not out.exists()
    found = kept(tmp_path)
    assert 3 <= len(found) <= BLOCKS
    found[1].write_bytes(found[1].read_bytes()[:-3] + b"abc")
    with Watching() as pool:
        index = build_small(out, pool)
    assert pool.labels == BLOCKS - len(found) + 1
    assert (files(index), judged(index)) == (files(alone), judged(alone))
    assert not kept(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenProcessPool("lost")])
def test_an_interrupted_build_keeps_its_blocks(
    error: BaseException, alone: Index, tmp_path: Path
) -> None:
    with Watching(error, at=6) as pool, pytest.raises(type(error)):
        build_small(tmp_path / "lm" / "1", pool)
    found = len(kept(tmp_path))
    assert 0 < found <= 6
    with Watching() as pool:
        index = build_small(tmp_path / "lm" / "1", pool)
    assert files(index) == files(alone)
    assert pool.labels == BLOCKS - found


def test_a_build_of_other_contexts_takes_no_block_of_it(tmp_path: Path) -> None:
    with Watching(KeyboardInterrupt(), at=6) as pool, pytest.raises(KeyboardInterrupt):
        build_small(tmp_path / "lm" / "1", pool)
    with Watching() as pool:
        build_small(tmp_path / "lm" / "1", pool, heldout=make_contexts(1000, seed=8))
    assert pool.labels == BLOCKS


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    error = InvalidRequest("weight", "nothing", "rows")
    with Watching(error, at=6) as pool, pytest.raises(InvalidRequest):
        build_small(tmp_path / "lm" / "1", pool)
    assert not list(tmp_path.iterdir())


def test_a_search_is_not_reproducible(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_small(tmp_path / "lm" / "1", target_precision={"p1": 0.9})
    assert caught.value.field == "reproducible"


class Dying(ProcessPoolExecutor):
    """Two processes, one of which ends in a call for labels."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        if args[0] is best_of_shard:
            return super().submit(os.abort)
        return super().submit(call, *args, **options)


def test_a_pool_that_lost_a_process_ends_the_build(tmp_path: Path) -> None:
    with Dying(2, get_context("spawn")) as pool, pytest.raises(BrokenProcessPool):
        build_small(tmp_path / "lm" / "1", pool)
