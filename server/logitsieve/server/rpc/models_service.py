import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index
from logitsieve.index.manifest import is_version
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.models.repository import Repository, log_time, require_alias
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import Served
from logitsieve.v1 import decoder_pb2 as pb

T = TypeVar("T")

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


@dataclass(eq=False)
class ModelsService:
    SERVICE = pb.DESCRIPTOR.services_by_name["Models"]
    config: ServeConfig
    repository: Repository
    most_bytes: int

    async def List(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        """Return a page of versions; its token is its last label."""
        size = min(request.page_size or PAGE_SIZE, MAX_PAGE_SIZE)
        versions = self.repository.versions()
        start = 0
        if request.page_token:
            labels = [version.label for version in versions]
            if request.page_token not in labels:
                raise InvalidRequest("page_token", request.page_token, "a next_page_token")
            start = labels.index(request.page_token) + 1
        page = versions[start : start + size]
        more = start + size < len(versions)
        return pb.ListModelsResponse(
            models=[self.describe(version) for version in page],
            next_page_token=page[-1].label if more else "",
        )

    async def Get(self, request: pb.GetModelRequest, call: Call) -> pb.Model:
        version = self.repository.routes.get(request.model)
        model = self.describe(version)
        if version.served is not None:
            call.route(request.model, version.name, str(version.number))
            model.points.extend(version.served.points)
        return model

    def describe(self, version: Version) -> pb.Model:
        config, served = self.config, version.served
        model = pb.Model(
            name=version.name,
            version=str(version.number),
            state=f"STATE_{version.state.upper()}",
            error=version.error,
            aliases=self.repository.routes.aliases_of(version),
        )
        if served is None:
            return model
        index = served.decoder.index
        model.digest = index.digest
        model.vocab_size, model.dim = index.vocab_size, index.dim
        if isinstance(index, Index) and index.manifest.vocabulary is not None:
            model.vocabulary_id = index.manifest.vocabulary.sha256
        model.heads.extend(index.heads)
        limits = model.limits
        limits.max_rows, limits.max_samples = config.max_rows, config.max_samples
        limits.max_k = min(config.max_k, index.vocab_size)
        limits.max_constraint_ids = config.max_constraint_ids
        limits.max_request_bytes = min(config.max_message_bytes(index.dim), self.most_bytes)
        return model


class AdminService:
    """Completes a change even if its client goes away."""

    SERVICE = pb.DESCRIPTOR.services_by_name["Admin"]

    def __init__(self, models: ModelsService, metrics: Metrics) -> None:
        self._repository, self._describe = models.repository, models.describe
        self._metrics = metrics
        self._loader = ThreadPoolExecutor(1, "logitsieve-load")
        self._loads: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def Load(self, request: pb.LoadRequest, call: Call) -> pb.Model:
        """Return once the version answers. Concurrent requests for a version share one load."""
        key = request.name, to_number(request.version)
        require_alias(request.alias)  # a bad one must not fail a load that others share
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._begin(self._load(*key, request.alias))
            task.add_done_callback(lambda _: self._loads.pop(key))
        elif request.alias:
            task = self._begin(self._name(task, *key, request.alias))
        await asyncio.shield(task)
        call.route("", request.name, request.version)
        return self._model(*key)

    async def Unload(self, request: pb.UnloadRequest, call: Call) -> pb.Model:
        """Return the version, in the state UNLOADING unless it is gone within `drain_ms`."""
        key = request.name, to_number(request.version)
        unloading = self._begin(self._unload(*key))
        if (retiring := await asyncio.shield(unloading)) is not None:
            await asyncio.wait((retiring,), timeout=request.drain_ms / 1000)
        return self._model(*key)

    async def SetAlias(self, request: pb.SetAliasRequest, call: Call) -> pb.Model:
        number = to_number(request.version) if request.version else None
        change = self._repository.set_alias
        version = await asyncio.to_thread(change, request.name, request.alias, number)
        return self._describe(version)

    def close(self) -> None:
        self._loader.shutdown(wait=False, cancel_futures=True)
        for task in self._tasks:
            task.cancel()

    async def _load(self, name: str, number: int, alias: str) -> None:
        loop, replace = asyncio.get_running_loop(), self._repository.replace
        try:
            replaced = await loop.run_in_executor(self._loader, replace, name, number, alias)
        except Exception:
            self._metrics.reloads[self._label(name), "failed"] += 1
            raise
        self._metrics.reloads[self._label(name), "ok"] += 1
        if replaced is not None:
            self._begin(_retire(replaced))

    async def _name(self, load: asyncio.Task[None], name: str, number: int, alias: str) -> None:
        await asyncio.shield(load)
        await asyncio.to_thread(self._repository.set_alias, name, alias, number)

    async def _unload(self, name: str, number: int) -> asyncio.Task[None] | None:
        served = await asyncio.to_thread(self._repository.unload, name, number)
        if served is None:
            return None

        async def leave() -> None:
            await _retire(served)
            await asyncio.to_thread(self._repository.forget, name, number)

        return self._begin(leave())

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio would log that nobody asked for it

    def _model(self, name: str, number: int) -> pb.Model:
        if (version := self._repository.routes.by_key.get((name, number))) is None:
            return pb.Model(name=name, version=str(number))
        return self._describe(version)

    def _label(self, name: str) -> str:
        loaded = {v.name for v in self._repository.versions() if v.served is not None}
        return name if name in loaded else UNKNOWN


async def _retire(served: Served) -> None:
    began, name, version = monotonic(), served.decoder.name, served.decoder.version
    digest = served.decoder.index.digest
    served.leases.end()
    await asyncio.wrap_future(served.leases.idle)
    await asyncio.to_thread(served.close)
    log_time("drain", name, version, "drained and closed", began, digest=digest)


def to_number(version: str) -> int:
    if not is_version(version):
        raise InvalidRequest("version", repr(version[:100]), "a positive integer, like 3")
    return int(version)
