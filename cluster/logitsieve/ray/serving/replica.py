"""A replica of a shard: opens its index alone, and answers calls of `Shard`'s methods."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads.sharded import Shard
from logitsieve.index import open_index
from ray import serve

log = logging.getLogger(__name__)

# The methods of a shard that give arrays for arrays.
METHODS = (
    *("weight", "logits64", "best", "candidates", "above"),
    *("log_z", "quick_log_z", "race"),
    *("bound_log_z", "bounded_log_z", "bounded_race"),
)


class Reply(NamedTuple):
    """What a method returned, or why it did not."""

    replica: str
    value: Any = None
    refused: tuple[str, str, str] | None = None  # field, got, allowed of InvalidRequest
    failed: str = ""  # a defect: its traceback is in the replica's log


class ShardReplica:
    """One process with one shard; up to `threads` calls are computed at a time."""

    def __init__(
        self,
        path: str,
        threads: int,
        verify: Literal["full", "sizes"],
        kernel_cache: Path | None,
    ) -> None:
        index = open_index(path, verify=verify, kernel_cache=kernel_cache)
        heads = {name: index.head(name) for name in index.heads}
        own = index.manifest.shard
        self._manifest = index.manifest.file_bytes()
        self._shard = Shard(0 if own is None else own.first, index.softmax, heads)
        self._shard.warm()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="logitsieve-shard")
        self._replica = str(serve.get_replica_context().replica_id.unique_id)

    async def manifest(self) -> bytes:
        """The manifest of the index that it opened, by which others know what it answers for."""
        return self._manifest

    async def ask(self, method: str, args: tuple[Any, ...]) -> Reply:
        """Call a method of the shard, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._answer, method, args)

    def _answer(self, method: str, args: tuple[Any, ...]) -> Reply:
        assert method in METHODS
        try:
            return Reply(self._replica, getattr(self._shard, method)(*args))
        except InvalidRequest as error:
            return Reply(self._replica, refused=(error.field, str(error.got), error.allowed))
        except Exception as error:  # raised again in the ingress, where the request is
            log.exception("%s failed", method)
            return Reply(self._replica, failed=f"{type(error).__name__}: {error}")
