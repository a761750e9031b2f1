"""A decoder over the replicas of a shard. If one fails, it asks another."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partialmethod
from time import monotonic, sleep
from typing import Any

from logitsieve.api.errors import IndexUnreadable, Unavailable
from logitsieve.utils.deadline import time_left

log = logging.getLogger(__name__)

AGAIN_S = 0.02
START_S = 300.0


class RayShardDecoder:
    """Answers through a handle of Ray Serve. Thread-safe.

    Unavailable if no replica answers within `patience_s`, or within the time left.
    """

    def __init__(
        self,
        handle: Any,
        digest: str,
        patience_s: float,
        *,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._handle, self._digest, self._patience_s = handle, digest, patience_s
        self._clock, self._pause = clock, pause

    def warm(self) -> None:
        """Wait for the first answer. IndexUnreadable if the digest is another."""
        digest = self._until(START_S, lambda left: self._handle.digest.remote())
        if digest != self._digest:
            reason = f"its replicas have opened an index with digest {digest[:12]}"
            raise IndexUnreadable(f"shard {self._digest[:12]}", reason)

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        left = time_left()
        seconds = self._patience_s if left is None else min(self._patience_s, left)
        reply = self._until(
            seconds, lambda left: self._handle.ask.remote(method, args, options, left)
        )
        if isinstance(reply, Exception):
            raise reply
        return reply

    topk = partialmethod(_ask, "topk")
    score = partialmethod(_ask, "score")
    sample = partialmethod(_ask, "sample")

    def _until(self, seconds: float, send: Callable[[float], Any]) -> Any:
        deadline = self._clock() + seconds
        while (left := deadline - self._clock()) > 0:
            response = send(left)
            try:
                return response.result(timeout_s=left)
            except TimeoutError:
                with suppress(Exception):
                    response.cancel()
                break
            except Exception as error:  # Ray has many kinds; this replica did not answer
                log.warning("shard %s: another replica: %r", self._digest[:12], error)
                self._pause(max(0.0, min(AGAIN_S, deadline - self._clock())))
        raise Unavailable(f"shard {self._digest[:12]}: no replica answered in {seconds:.3g} s")
