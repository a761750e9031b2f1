"""The server process: load, listen, answer, drain."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from logitsieve.server.again import Again
from logitsieve.server.config import ServeConfig
from logitsieve.server.decoder_service import DecoderService
from logitsieve.server.health import Health
from logitsieve.server.http import HttpServer
from logitsieve.server.metrics import Metrics
from logitsieve.server.models_service import ModelsService
from logitsieve.server.ports import Ports, address, check_free, taken
from logitsieve.server.repository import Progress, Repository, Version
from logitsieve.server.tokens import READ
from logitsieve.server.work import Work

ProgressShown = Callable[[], AbstractContextManager[Progress]]


def ignore(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


class Server:
    """One process's gRPC and HTTP ports over one repository; `start` binds them."""

    def __init__(self, config: ServeConfig, repository: Repository) -> None:
        self.config = config
        self.repository = repository
        self.metrics = Metrics()
        self.port = 0
        self.metrics_port = 0
        self._ready = False
        self._health = Health()
        self._work = Work(
            threads=config.threads,
            max_in_flight=config.max_in_flight,
            max_queue_rows=config.max_queue_rows,
            batch_delay_us=config.batch_delay_us,
            counted=self.metrics.batch,
        )
        self.metrics.watch_queue(lambda: self._work.queue_rows)
        self._again = Again()
        self._decoder = DecoderService(config, repository, self._work, self.metrics)
        self._http = HttpServer(self.metrics.text, lambda: self._ready)
        self._grpc: grpc.aio.Server | None = None

    async def start(self, progress: Progress = ignore) -> None:
        """Load and warm every version, then listen and say SERVING.

        The HTTP port answers from the beginning. InvalidRequest names a port that cannot be
        bound, a file of TLS or tokens that is not good, or `models` where there is none.
        """
        config = self.config
        found = self.repository.find()
        ports = Ports(config, self.metrics)
        check_free("port", config.host, config.port)
        try:
            self.metrics_port = await self._http.start(config.host, config.metrics_port)
        except OSError as error:
            raise taken("metrics_port", config.host, config.metrics_port) from error
        for name, number in found:
            await asyncio.to_thread(self._load, name, number, progress)
        self._grpc = self._listen(ports)
        await self._grpc.start()
        self._ready = await self._health.serving(self.repository)
        self._again.start(self.repository.versions())

    async def stop(self) -> None:
        """Say NOT_SERVING, take no new requests, give those in flight `drain_s` seconds."""
        self._ready = False
        await self._health.drain()
        self._decoder.drain()
        if self._grpc is not None:
            await self._grpc.stop(self.config.drain_s)
        await asyncio.to_thread(self._again.stop)
        await asyncio.to_thread(self._work.close)
        await self._http.stop()

    def _load(self, name: str, number: int, progress: Progress) -> None:
        label = Version(name, number).label
        version = self.repository.load(
            name, number, lambda stage, done, total: progress(f"{label} {stage}", done, total)
        )
        if version.served is not None:
            index = version.served.decoder.index
            self.metrics.loaded(name, str(number), index.digest, index.vocab_size, index.dim)

    def _listen(self, ports: Ports) -> grpc.aio.Server:
        config = self.config
        dims = [v.served.decoder.index.dim for v in self.repository.versions() if v.served]
        models = ModelsService(config, self.repository, self.metrics)
        handlers = (self._decoder.handler(), models.handler())
        most = config.max_message_bytes(max(dims, default=0))
        server = ports.server(READ, handlers, most)
        add_HealthServicer_to_server(self._health, server)
        self.port = ports.bind(server, "port", config.host, config.port)
        return server


def create_server(config: ServeConfig, *, repository: Repository | None = None) -> Server:
    """A server that is not started yet; port 0 in `config` takes a free one. Call it in a loop."""
    return Server(config, repository or Repository(config))


def serve(config: ServeConfig, *, progress: ProgressShown = lambda: nullcontext(ignore)) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. InvalidRequest names a bad option.

    `progress()` is entered while versions load: it yields what is told (stage, done, total).
    """
    asyncio.run(_serve(config, progress))


async def _serve(config: ServeConfig, progress: ProgressShown) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    server = create_server(config)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        with progress() as report:
            started = asyncio.ensure_future(server.start(report))
            await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started
            # What is loaded stays: the garbage collector need not look at it between requests.
            gc.collect()
            gc.freeze()
            _announce(server)
            await stopped
        started.cancel()
    finally:
        await server.stop()


def _announce(server: Server) -> None:
    host = server.config.host
    for version in server.repository.versions():
        print(f"{version.label}: {version.error or 'ready'}", file=sys.stderr)
    print(
        f"gRPC at {address(host, server.port)}, "
        f"metrics at http://{address(host, server.metrics_port)}/metrics",
        file=sys.stderr,
        flush=True,
    )
