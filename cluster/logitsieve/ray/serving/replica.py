"""A replica of a shard: a process that opens its index and answers as a decoder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from logitsieve.api.errors import DeadlineExceeded, InternalError, LogitsieveError
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.utils.deadline import ending_by

log = logging.getLogger(__name__)

METHODS = ("topk", "score", "sample")
TOO_LATE = "the time of a call was over before its replica could compute it"


class ShardReplica:
    """One process with one warm shard; `threads` calls compute at a time."""

    def __init__(
        self, path: str, threads: int, verify: Literal["full", "sizes"], kernel_cache: Path | None
    ) -> None:
        self._decoder = LocalDecoder(open_index(path, verify=verify, kernel_cache=kernel_cache))
        self._decoder.warm()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="logitsieve-shard")

    async def digest(self) -> str:
        return self._decoder.index.digest

    async def ask(
        self, method: str, args: tuple[Any, ...], options: Mapping[str, Any], left_s: float
    ) -> Any:
        """Return the reply of a method, or its error as a value, within `left_s` seconds."""
        deadline = monotonic() + left_s
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._answer, method, args, options, deadline)

    def _answer(
        self, method: str, args: tuple[Any, ...], options: Mapping[str, Any], deadline: float
    ) -> Any:
        assert method in METHODS
        if monotonic() >= deadline:
            return DeadlineExceeded(TOO_LATE)
        try:
            with ending_by(deadline):
                return getattr(self._decoder, method)(*args, **options)
        except LogitsieveError as error:
            return error
        except Exception as error:  # raised again in the ingress
            log.exception("%s failed", method)
            return InternalError(f"a shard: {type(error).__name__}: {error}")
