"""Calls spread over an executor: blocks of one size for any number of workers, merged in order.

An object that many calls need is shared: calls in this process get the object itself; each worker
in another process makes it once, from arrays that are sent once. Every call has one thread for
matrix products, so the results equal those of a single thread, bit for bit.
"""

from __future__ import annotations

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

from logitsieve.index_builder.data.arrays import save

T = TypeVar("T")
R = TypeVar("R")

HELD = 2  # shared objects that a worker process holds at once
AHEAD = 2  # calls for each worker that may be begun before the first of all has ended


class SharingExecutor(Executor):
    """An executor that sends an array to its workers once, for all calls."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Calls that run side by side."""

    @abstractmethod
    def share(self, array: np.ndarray) -> Any:
        """Return a stand-in for `array` as an argument of `submit`; the call gets the array."""


@dataclass(frozen=True)
class Shared(Generic[T]):
    """An object for calls: `value` in this process, `make(*arrays, *options)` in another one.

    `make`, and what is called, are functions of a module, which other processes import.
    """

    value: T = field(compare=False)
    make: Callable[..., T] = field(compare=False)
    arrays: Sequence[np.ndarray] = field(compare=False)
    options: tuple[Any, ...] = field(default=(), compare=False)
    key: str = field(default_factory=lambda: secrets.token_hex(8))


class Workers:
    """Makes calls by an executor; without one, in this thread.

    For other processes, arrays are written to `scratch`, unless the executor shares them itself.
    """

    def __init__(self, executor: Executor | None = None, scratch: Path | None = None) -> None:
        self._executor, self._scratch = executor or _ThisThread(), scratch
        self._here = is_here(executor)
        self._sent: dict[int, tuple[np.ndarray, Any]] = {}  # by the id of an array that it keeps

    def map(self, call: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Results of `call(value, *others)` for each (Shared, *others), in their order."""
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
    """Report if an executor's calls, or those of none, run in this process."""
    return executor is None or isinstance(executor, ThreadPoolExecutor)


@contextmanager
def in_threads(executor: Executor | None, threads: int) -> Iterator[Executor | None]:
    """The executor, or, if there is none, so many threads of this process; None for one."""
    if executor is not None or threads == 1:
        yield executor
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool


def one_thread() -> AbstractContextManager[Any]:
    """Products of matrices on one thread: on more, some are sums in another order."""
    return cast(AbstractContextManager[Any], _libraries().limit(limits=1, user_api="blas"))


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


class _ThisThread(Executor):
    def submit(self, call: Callable[..., R], /, *args: Any, **options: Any) -> Future[R]:
        future: Future[R] = Future()
        future.set_result(call(*args, **options))
        return future


_made: dict[str, Any] = {}  # the shared objects of this process, by key


def _call(
    call: Callable[..., R],
    others: Sequence[Any],
    key: str,
    make: Callable[..., Any],
    options: tuple[Any, ...],
    *arrays: np.ndarray | Path,
) -> R:
    """Make a call in a worker, with the object that `make` makes of the arrays, once for a key."""
    if key not in _made:
        for old in list(_made)[: 1 - HELD]:
            del _made[old]
        opened = (np.load(one, mmap_mode="r") if isinstance(one, Path) else one for one in arrays)
        _made[key] = make(*map(np.asarray, opened), *options)
    with one_thread():
        return call(_made[key], *others)
