"""Computes for the console in two threads of lower priority."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from logitsieve.api.errors import DeadlineExceeded, Overloaded, Unavailable
from logitsieve.decoding import LocalDecoder
from logitsieve.server.models.routes import Routes
from logitsieve.server.precision import step_back

AT_ONCE = 2
MOST_WAITING = 6  # and computing
RETRY_S = 1.0
ANSWER_S = 4.0  # less than the port's patience, so the reason reaches the browser

T = TypeVar("T")
Admit = Callable[[float | None], object]


class Desk:
    """Runs work on loaded versions; `admit` may refuse it."""

    def __init__(
        self, routes: Callable[[], Routes], admit: Admit, answer_s: float = ANSWER_S
    ) -> None:
        self.routes, self._admit, self._answer_s = routes, admit, answer_s
        self._pool = ThreadPoolExecutor(AT_ONCE, "logitsieve-console", initializer=step_back)
        self._waiting, self._closed = 0, False

    async def run(self, work: Callable[[LocalDecoder], T], model: str) -> T:
        """Return `work` on the decoder of `model`.

        ModelNotFound or Unavailable if it is not loaded; Overloaded; DeadlineExceeded.
        """
        if self._closed:
            raise Unavailable("the server is stopping")
        served = self.routes().served(model)
        self._admit(self._answer_s)
        if self._waiting >= MOST_WAITING:
            raise Overloaded(f"the console computes {AT_ONCE} answers at once", RETRY_S)

        def leased() -> T:
            with served.leases:
                return work(served.whole)

        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, leased)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._answer_s)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {self._answer_s:g} s") from error

    def _done(self, future: asyncio.Future[T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # marks it as seen

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
