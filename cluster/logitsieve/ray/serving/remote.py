"""A decoder whose shard has replicas on Ray: another one is asked where one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from time import monotonic, sleep
from typing import Any, NamedTuple

from logitsieve.api.errors import IndexUnreadable, ShardUnavailable
from logitsieve.api.results import BeamStepReply, SampleReply, ScoreReply, TopKReply
from logitsieve.utils.deadline import time_left

log = logging.getLogger(__name__)

AGAIN_S = 0.02  # before another replica is asked, while Ray takes notice of a dead one
START_S = 300.0  # that replicas may take to start again before a version counts as failed


class Rows(NamedTuple):
    """What a shard has: `rows` rows from row `first` on, of the index with this digest."""

    first: int
    rows: int
    digest: str


class RayShardDecoder:
    """Answers by a Serve handle. Any number of threads may call it.

    ShardUnavailable if no replica answers within `patience_s`, or within the `share` of the time
    that the computation has left. From then on one call at a time waits for the shard, and others
    are refused at once, until it answers again.
    """

    def __init__(
        self,
        handle: Any,
        shard: Rows,
        patience_s: float,
        share: float = 1.0,
        *,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._handle, self._shard = handle, shard
        self._patience_s, self._share = patience_s, share
        self._clock, self._pause = clock, pause
        self._lock = Lock()
        self._silent_until: float | None = None  # when the call that waits for an answer gives up

    def topk(self, *args: Any, **options: Any) -> TopKReply:
        """See `Decoder.topk`."""
        reply: TopKReply = self._ask("topk", args, options)
        return reply

    def score(self, *args: Any, **options: Any) -> ScoreReply:
        """See `Decoder.score`."""
        reply: ScoreReply = self._ask("score", args, options)
        return reply

    def sample(self, *args: Any, **options: Any) -> SampleReply:
        """See `Decoder.sample`."""
        reply: SampleReply = self._ask("sample", args, options)
        return reply

    def beam_step(self, *args: Any, **options: Any) -> BeamStepReply:
        """See `Decoder.beam_step`."""
        reply: BeamStepReply = self._ask("beam_step", args, options)
        return reply

    def warm(self) -> None:
        """Wait for the first answer. IndexUnreadable if the replicas have opened another index."""
        found = self._until(self._clock() + START_S, lambda left: self._handle.digest.remote())
        if found != self._shard.digest:
            reason = f"its replicas have opened an index with digest {found[:12]}"
            raise IndexUnreadable(f"rows from {self._shard.first}", reason)

    def _ask(self, method: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        left = time_left()
        most = self._patience_s if left is None else min(self._patience_s, left * self._share)
        began = self._clock()
        if not self._admit(began, began + most):
            raise self._unavailable()
        try:
            reply = self._until(
                began + most, lambda left: self._handle.ask.remote(method, args, options, left)
            )
        except ShardUnavailable:
            if most >= self._patience_s:
                with self._lock:
                    self._silent_until = self._silent_until or 0.0
            raise
        self._silent_until = None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _until(self, deadline: float, send: Callable[[float], Any]) -> Any:
        """The first answer of a replica; ShardUnavailable if there is none by the deadline."""
        while (left := deadline - self._clock()) > 0:
            response = send(left)
            try:
                return response.result(timeout_s=left)
            except TimeoutError as error:
                with suppress(Exception):  # it may have ended meanwhile
                    response.cancel()
                raise self._unavailable() from error
            except Exception as error:  # whatever Ray says: this replica did not answer
                log.warning("rows from %d: another replica: %r", self._shard.first, error)
                self._pause(max(0.0, min(AGAIN_S, deadline - self._clock())))
        raise self._unavailable()

    def _admit(self, now: float, deadline: float) -> bool:
        """Whether a call may be sent, which is given up at the deadline if it is."""
        with self._lock:
            if self._silent_until is None:
                return True
            if now < self._silent_until:
                return False
            self._silent_until = deadline
            return True

    def _unavailable(self) -> ShardUnavailable:
        return ShardUnavailable(self._shard.first, self._shard.rows)
