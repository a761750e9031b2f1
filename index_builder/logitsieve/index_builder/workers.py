"""Spreads calls over an executor. Results have the bits of a single thread's.

Calls share a large object, which other processes make once, from arrays that are sent once.
"""

import os
import secrets
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from threadpoolctl import ThreadpoolController

from logitsieve.index_builder.arrays import save

T = TypeVar("T")
R = TypeVar("R")

HELD = 2
AHEAD = 2


class SharingExecutor(Executor):
    """An executor that can share arrays with its workers."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of calls that run in parallel."""

    @abstractmethod
    def share(self, array: np.ndarray) -> Any:
        """Send `array` once; return what `submit` takes in its place."""


@dataclass(frozen=True)
class Shared(Generic[T]):
    """An object that calls share: `value` here, `make(*arrays, *options)` in another process.

    `make` and the called function must be importable.
    """

    value: T = field(compare=False)
    make: Callable[..., T] = field(compare=False)
    arrays: Sequence[np.ndarray] = field(compare=False)
    options: tuple[Any, ...] = field(default=(), compare=False)
    key: str = field(default_factory=lambda: secrets.token_hex(8))


class Workers:
    """Runs calls on an executor, or in this thread; shares arrays by files in `scratch`."""

    def __init__(self, executor: Executor | None = None, scratch: Path | None = None) -> None:
        self._executor, self._scratch = executor or _ThisThread(), scratch
        self._here = is_here(executor)
        self._sent: dict[int, tuple[np.ndarray, Any]] = {}

    def map(self, call: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Yield `call(value, *others)` for each (Shared, *others), in order."""
        waiting: deque[Future[R]] = deque()
        try:
            with one_thread():
                for shared, *others in calls:
                    waiting.append(self._begin(call, shared, others))
                    if len(waiting) > self._ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    @property
    def _ahead(self) -> int:
        if isinstance(self._executor, _ThisThread):
            return 0
        if isinstance(self._executor, SharingExecutor):
            return AHEAD * self._executor.workers
        return AHEAD * (os.cpu_count() or 1)

    def _begin(self, call: Callable[..., R], shared: Shared[Any], others: list[Any]) -> Future[R]:
        if self._here:
            return self._executor.submit(call, shared.value, *others)
        sent = [self._send(array) for array in shared.arrays]
        key, make, options = shared.key, shared.make, shared.options
        return self._executor.submit(_call, call, others, key, make, options, *sent)

    def _send(self, array: np.ndarray) -> Any:
        if id(array) not in self._sent:
            if isinstance(self._executor, SharingExecutor):
                sent = self._executor.share(array)
            else:
                assert self._scratch is not None
                sent = self._scratch / f"shared-{len(self._sent)}.npy"
                save(sent, array)
            self._sent[id(array)] = array, sent
        return self._sent[id(array)][1]


def is_here(executor: Executor | None) -> bool:
    return executor is None or isinstance(executor, ThreadPoolExecutor)


@contextmanager
def in_threads(executor: Executor | None, threads: int) -> Iterator[Executor | None]:
    """Yield the executor or, without one, a pool of `threads` threads (None if it is one)."""
    if executor is not None or threads == 1:
        yield executor
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool


def one_thread() -> AbstractContextManager[Any]:
    """Limit matrix products to one thread, because more threads sum in another order."""
    return cast(AbstractContextManager[Any], _libraries().limit(limits=1, user_api="blas"))


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


class _ThisThread(Executor):
    def submit(self, call: Callable[..., R], /, *args: Any, **options: Any) -> Future[R]:
        future: Future[R] = Future()
        future.set_result(call(*args, **options))
        return future


_made: dict[str, Any] = {}


def _call(
    call: Callable[..., R],
    others: Sequence[Any],
    key: str,
    make: Callable[..., Any],
    options: tuple[Any, ...],
    *arrays: np.ndarray | Path,
) -> R:
    if key not in _made:
        for old in list(_made)[: 1 - HELD]:
            del _made[old]
        opened = (np.load(one, mmap_mode="r") if isinstance(one, Path) else one for one in arrays)
        _made[key] = make(*map(np.asarray, opened), *options)
    with one_thread():
        return call(_made[key], *others)
