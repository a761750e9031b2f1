"""The Admin service, on a port of its own: loading, unloading and naming versions while they serve.

What has begun is finished, whether or not the client waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.index.manifest import is_version
from logitsieve.server.logs import event
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import Served
from logitsieve.server.precision.recalibrator import Recalibrator
from logitsieve.server.rpc.handlers import Context, parse, unary
from logitsieve.v1 import decoder_pb2 as pb

log = logging.getLogger(__name__)
T = TypeVar("T")
Describe = Callable[[Version], pb.Model]


class AdminService:
    """Changes the repository. Versions load one after the other, beside all else."""

    def __init__(
        self, repository: Repository, metrics: Metrics, again: Recalibrator, describe: Describe
    ) -> None:
        self._repository, self._metrics, self._again = repository, metrics, again
        self._describe = describe
        self._loader = ThreadPoolExecutor(1, "logitsieve-load")
        self._loads: dict[tuple[str, int, str], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """All methods of the service, over raw bytes."""
        return grpc.method_handlers_generic_handler(
            "logitsieve.v1.Admin",
            {
                "Load": unary("Load", self.load, self._metrics),
                "Unload": unary("Unload", self.unload, self._metrics),
                "SetAlias": unary("SetAlias", self.set_alias, self._metrics),
            },
        )

    async def load(self, message: bytes, context: Context, call: Call) -> bytes:
        """LoadRequest -> Model, once it answers. Equal requests at one time are one load."""
        request = parse(pb.LoadRequest, message)
        key = request.name, to_number(request.version), request.alias
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._begin(self._load(*key))
            task.add_done_callback(lambda _: self._loads.pop(key))
        await asyncio.shield(task)
        call.model = request.name
        return self._reply(*key[:2])

    async def unload(self, message: bytes, context: Context, call: Call) -> bytes:
        """UnloadRequest -> Model, without a state when it is gone, which takes `drain_ms` at most.

        UNLOADING else: it is closed when the last request that it answers is done.
        """
        request = parse(pb.UnloadRequest, message)
        key = request.name, to_number(request.version)
        unloading = self._begin(self._unload(*key))
        if (retiring := await asyncio.shield(unloading)) is not None:
            await asyncio.wait((retiring,), timeout=request.drain_ms / 1000)
        return self._reply(*key)

    async def set_alias(self, message: bytes, context: Context, call: Call) -> bytes:
        """SetAliasRequest -> the Model that the alias names; no version takes the alias away."""
        request = parse(pb.SetAliasRequest, message)
        number = to_number(request.version) if request.version else None
        version = await asyncio.to_thread(
            self._repository.set_alias, request.name, request.alias, number
        )
        return self._describe(version).SerializeToString()

    def close(self) -> None:
        """Begin nothing more."""
        self._loader.shutdown(wait=False, cancel_futures=True)
        for task in self._tasks:
            task.cancel()

    async def _load(self, name: str, number: int, alias: str) -> None:
        loop, repository = asyncio.get_running_loop(), self._repository
        try:
            replaced = await loop.run_in_executor(
                self._loader, repository.replace, name, number, alias
            )
        except Exception:
            self._metrics.reloaded(self._label(name), "failed")
            raise
        self._metrics.reloaded(self._label(name), "ok")
        self._again.start([repository.get(f"{name}@{number}")])
        if replaced is not None:
            self._begin(_retire(replaced))

    async def _unload(self, name: str, number: int) -> asyncio.Task[None] | None:
        served = await asyncio.to_thread(self._repository.unload, name, number)
        if served is None:
            return None

        async def leave() -> None:
            await _retire(served)
            self._repository.forget(name, number)

        return self._begin(leave())

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to those who wait, who may be nobody

    def _reply(self, name: str, number: int) -> bytes:
        version = self._repository.routes.by_key.get((name, number))
        gone = pb.Model(name=name, version=str(number))
        return (gone if version is None else self._describe(version)).SerializeToString()

    def _label(self, name: str) -> str:
        loaded = {v.name for v in self._repository.versions() if v.served is not None}
        return name if name in loaded else UNKNOWN


async def _retire(served: Served) -> None:
    """Close a version that is not routed to any more, when nobody uses it any more."""
    began, decoder = monotonic(), served.decoder
    digest = decoder.index.digest
    served.leases.end()
    await asyncio.wrap_future(served.leases.idle)
    await asyncio.to_thread(served.close)
    seconds = round(monotonic() - began, 3)
    event(
        log,
        logging.INFO,
        "drain",
        f"{decoder.name}@{decoder.version}: drained and closed in {seconds:.1f} s",
        model=decoder.name,
        version=decoder.version,
        digest=digest,
        seconds=seconds,
    )


def to_number(version: str) -> int:
    """InvalidRequest unless it is the name of a version's folder."""
    if not is_version(version):
        raise InvalidRequest("version", repr(version[:100]), "a positive integer, like 3")
    return int(version)
