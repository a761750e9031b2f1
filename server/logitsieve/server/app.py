"""The server process: load, listen, answer, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from logitsieve.api.errors import DeviceLost
from logitsieve.decoding import LocalDecoder
from logitsieve.gpu.open import gpu_ns
from logitsieve.server.config import MESSAGE_OVERHEAD, ServeConfig
from logitsieve.server.http import HttpServer
from logitsieve.server.kserve import kserve_admin_handlers, kserve_handlers
from logitsieve.server.logs import configure, event
from logitsieve.server.metrics import Metrics
from logitsieve.server.models.devices import Devices, answering
from logitsieve.server.models.repository import Progress, Repository, ignore
from logitsieve.server.models.routes import Version
from logitsieve.server.precision.precision_metrics import PrecisionMetrics
from logitsieve.server.precision.recalibrator import Recalibrator
from logitsieve.server.precision.shadow import Shadow
from logitsieve.server.rpc.admin_service import AdminService
from logitsieve.server.rpc.decoder_service import DecoderService
from logitsieve.server.rpc.health import Health
from logitsieve.server.rpc.models_service import ModelsService
from logitsieve.server.rpc.ports import Ports, address, check_free, taken
from logitsieve.server.scheduling.executor import Executor, no_gpu
from logitsieve.server.security.tokens import ADMIN, READ

log = logging.getLogger(__name__)

ProgressShown = Callable[[], AbstractContextManager[Progress]]


class Server:
    """One process's gRPC and HTTP ports over one repository; `start` binds them."""

    def __init__(self, config: ServeConfig, repository: Repository) -> None:
        self.config = config
        self.repository = repository
        self.metrics = Metrics()
        self.port = 0
        self.metrics_port = 0
        self.admin_port = 0  # stays so where there is none
        self._ready = self._stopping = False
        self.lost: DeviceLost | None = None  # a GPU that has failed: the process must end
        self._losing = asyncio.Event()
        self._health = Health()
        self._devices = Devices(config, self.metrics.registry)
        self._work = Executor(
            threads=config.threads,
            max_in_flight=config.max_in_flight,
            max_queue_rows=config.max_queue_rows,
            batch_delay_us=config.batch_delay_us,
            counted=self.metrics.batch,
            lost=self._lose,
            device_ns=gpu_ns if self._devices.gpus else no_gpu,
        )
        self.metrics.watch_queue(lambda: self._work.queue_rows)
        self._again = Recalibrator()
        live = PrecisionMetrics(self.metrics.registry, repository.versions)
        self._shadow = Shadow(
            config.shadow_share, config.shadow_cpu, judged=live.judged, lost=live.lost
        )
        self._decoder = DecoderService(config, repository, self._work, self.metrics, self._shadow)
        self._http = HttpServer(self.metrics.text, lambda: self._ready)
        self._grpc: grpc.aio.Server | None = None
        self._admin: AdminService | None = None
        self._admin_grpc: grpc.aio.Server | None = None

    async def start(self, progress: Progress = ignore) -> None:
        """Load and warm every version, then listen and say SERVING.

        The HTTP port answers from the beginning. InvalidRequest names a port that cannot be
        bound, a file of TLS or tokens that is not good, `models` where there is none, or a GPU
        that is not there; DeviceLost one that has failed.
        """
        config = self.config
        found = self.repository.find()
        self._devices.check({name for name, _ in found})
        ports = Ports(config, self.metrics)
        check_free("port", config.host, config.port)
        if config.admin:
            check_free("admin_port", config.admin_host, config.admin_port)
        try:
            self.metrics_port = await self._http.start(config.host, config.metrics_port)
        except OSError as error:
            raise taken("metrics_port", config.host, config.metrics_port) from error
        self.repository.prepare = self._ready_pool
        for name, number in found:
            await asyncio.to_thread(self._load, name, number, progress)
        self._listen(ports)
        for server in self._servers():
            await server.start()
        soon = asyncio.get_running_loop().call_soon_threadsafe
        self.repository.changed = partial(soon, self._publish)
        self.repository.lost = lambda error: soon(self._lose, error)
        self._publish()
        self._again.start(self.repository.versions())
        self._shadow.start()

    async def until_lost(self) -> None:
        """Return once a GPU has failed, which is `lost` then; nothing is ready any more."""
        await self._losing.wait()

    async def stop(self) -> None:
        """Say NOT_SERVING, take no new requests, give those in flight `drain_s` seconds."""
        self._ready, self._stopping = False, True
        await self._health.drain()
        self._decoder.drain()
        await asyncio.gather(*(server.stop(self.config.drain_s) for server in self._servers()))
        if self._admin is not None:
            self._admin.close()
        await asyncio.to_thread(self._again.stop)
        await asyncio.to_thread(self._shadow.stop)
        await asyncio.to_thread(self._work.close)
        await self._http.stop()

    def _load(self, name: str, number: int, progress: Progress) -> None:
        label = Version(name, number).label
        self.repository.load(
            name, number, lambda stage, done, total: progress(f"{label} {stage}", done, total)
        )

    def _ready_pool(self, decoder: LocalDecoder) -> None:
        """On a GPU each thread has its own buffers and graphs: no request waits for them."""
        if decoder.index.device != "cpu":
            for head in answering(decoder):
                self._work.on_each(head.warm)

    def _lose(self, error: DeviceLost) -> None:
        if self.lost is None:
            self.lost, self._ready, self._stopping = error, False, True
            event(log, logging.ERROR, "device_lost", str(error), device=error.device)
            self._losing.set()

    def _publish(self) -> None:
        """Tell health, readiness and metrics what is loaded."""
        routes = self.repository.routes
        served = [version.served for version in routes.by_key.values() if version.served]
        self.metrics.loaded(one.decoder.index for one in served)
        self._ready = self._health.publish(routes) and not self._stopping

    def _servers(self) -> list[grpc.aio.Server]:
        return [server for server in (self._grpc, self._admin_grpc) if server is not None]

    def _listen(self, ports: Ports) -> None:
        config = self.config
        dims = [v.served.decoder.index.dim for v in self.repository.versions() if v.served]
        most = config.max_message_bytes(max(dims, default=0))
        models = ModelsService(config, self.repository, self.metrics, most)
        handlers = (
            self._decoder.handler(),
            models.handler(),
            *kserve_handlers(self.repository, self._decoder, self.metrics),
        )
        self._grpc = ports.server(READ, handlers, most)
        add_HealthServicer_to_server(self._health, self._grpc)
        self.port = ports.bind(self._grpc, "port", config.host, config.port)
        if config.admin:
            self._admin = AdminService(self.repository, self.metrics, self._again, models.describe)
            handlers = (self._admin.handler(), *kserve_admin_handlers(self._admin, self.metrics))
            self._admin_grpc = ports.server(ADMIN, handlers, MESSAGE_OVERHEAD)
            self.admin_port = ports.bind(
                self._admin_grpc, "admin_port", config.admin_host, config.admin_port
            )


def create_server(config: ServeConfig, *, repository: Repository | None = None) -> Server:
    """A server that is not started yet; port 0 in `config` takes a free one. Call it in a loop."""
    return Server(config, repository or Repository(config))


def serve(
    config: ServeConfig,
    *,
    progress: ProgressShown = lambda: nullcontext(ignore),
    repository: Repository | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. InvalidRequest names a bad option.

    DeviceLost where a GPU fails, after draining: what this process has there is of no use.
    `progress()` is entered while versions load: it yields what is told (stage, done, total).
    """
    configure(config.log_format)
    asyncio.run(_serve(config, progress, repository))


async def _serve(
    config: ServeConfig, progress: ProgressShown, repository: Repository | None
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    server = create_server(config, repository=repository)
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
            lost = asyncio.ensure_future(server.until_lost())
            await asyncio.wait((stopped, lost), return_when=asyncio.FIRST_COMPLETED)
            drain_s = config.drain_s
            said = f"stopping: {drain_s:g} s for what is in flight"
            event(log, logging.INFO, "stopping", said, drain_s=drain_s)
        started.cancel()
    finally:
        await server.stop()
    event(log, logging.INFO, "stopped", "stopped")
    if server.lost is not None:
        raise server.lost


def _announce(server: Server) -> None:
    if server.admin_port:
        admin = address(server.config.admin_host, server.admin_port)
        event(log, logging.INFO, "start", f"Admin at {admin}", admin=admin)
    host = server.config.host
    grpc_at = address(host, server.port)
    metrics = f"http://{address(host, server.metrics_port)}/metrics"
    said = f"gRPC at {grpc_at}, metrics at {metrics}"
    event(log, logging.INFO, "start", said, grpc=grpc_at, metrics=metrics)
