import asyncio
import ctypes
import gc
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import uvloop

from logitsieve.api.errors import DeviceLost
from logitsieve.gpu.open import gpu_device, gpu_ns
from logitsieve.server.config import MESSAGE_OVERHEAD, ServeConfig
from logitsieve.server.http.application import Console, ServerView, application, open_console
from logitsieve.server.http.listener import Listener
from logitsieve.server.kserve import has_kserve, kserve_services
from logitsieve.server.logs import configure, event
from logitsieve.server.loops import call_soon, end_after, first_signal
from logitsieve.server.metrics import Devices, Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.precision import PrecisionMetrics, Shadow
from logitsieve.server.rpc.decoder_service import DecoderService
from logitsieve.server.rpc.gate import Gate
from logitsieve.server.rpc.handlers import service
from logitsieve.server.rpc.health import Health
from logitsieve.server.rpc.models_service import AdminService, ModelsService
from logitsieve.server.rpc.own_process import OwnProcess
from logitsieve.server.rpc.ports import Ports, address, check_free, taken
from logitsieve.server.scheduling.executor import Executor
from logitsieve.server.security import ADMIN, READ, ApiKeys, http_tls, keep_renewing
from logitsieve.utils.environment import is_loopback, require
from logitsieve.utils.options import Progress, no_progress

if TYPE_CHECKING:
    from logitsieve.server.tracing import Tracing

log = logging.getLogger(__name__)

LAST_REPLIES_S = 0.5
WATCH_S = 0.5  # between looks at the files of loaded versions
# Constants of glibc's malloc.h. Once a threshold is set, glibc no longer raises it by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 1 << 20
ARENAS = 2

ProgressShown = Callable[[], AbstractContextManager[Progress]]


class Server:
    """A process's gRPC and HTTP ports, which `start` binds."""

    def __init__(self, config: ServeConfig, repository: Repository) -> None:
        self.config = config
        self.repository = repository
        self.metrics = Metrics(repository.versions)
        self.port = self.http_port = self.admin_port = 0
        self.http_scheme = "http"
        self._ready = self._stopping = False
        self.lost: DeviceLost | None = None  # a GPU's failure: the process must end
        self.losing = asyncio.Event()
        self._health = Health()
        Devices(config.device, self.metrics.registry)
        self._tracing: Tracing | None = None
        if config.otlp_endpoint is not None:
            require("otel", "opentelemetry")
            from logitsieve.server.tracing import open_tracing

            self._tracing = open_tracing(config.otlp_endpoint)
            self.metrics.on_finish = self._tracing.record
        self._work = Executor(
            config,
            count_batch=self.metrics.batch_rows.observe,
            lose_device=self._lose,
            device_ns=None if config.device == "cpu" else gpu_ns,
        )
        self.metrics.queue_rows.set_function(lambda: self._work.batcher.rows)
        precision = PrecisionMetrics(self.metrics.registry, repository.versions)
        self._shadow = Shadow(
            config.shadow_share, config.shadow_cpu, judged=precision.judged, lost=precision.lost
        )
        self._decoder = DecoderService(config, repository, self._work, self.metrics, self._shadow)
        self._http: Listener | None = None
        self.console: Console | None = None
        self._admin: AdminService | None = None
        self._servers: list[grpc.aio.Server] = []
        self._ports: Ports | None = None
        self._gate: Gate | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, progress: Progress = no_progress) -> None:
        """Load and warm every version, then report SERVING. The HTTP port answers at once.

        InvalidRequest names a bad port, TLS or API key file, folder or GPU. Also DeviceLost and
        MissingExtra.
        """
        config = self.config
        versions = self.repository.find()
        if config.device != "cpu":
            gpu_device(config.device)
        self._ports = ports = Ports(config, self.metrics)
        check_free("port", config.host, config.port)
        if config.admin:
            check_free("admin_port", config.admin_host, config.admin_port)
        try:
            self.http_port = await self._listen_http(ports.api_keys)
        except OSError as error:
            raise taken("http_port", config.host, config.http_port, error) from error
        for name, number in versions:
            await asyncio.to_thread(self.repository.load, name, number, progress)
        self._listen(ports)
        for server in self._servers:
            await server.start()
        soon = partial(call_soon, asyncio.get_running_loop())
        self.repository.changed = partial(soon, self._publish)
        self.repository.lost = lambda error: soon(self._lose, error)
        self._publish()
        self._shadow.start()
        self._watching = asyncio.create_task(self._watch())

    def guard(self) -> None:
        """Hold back new connections while this process has grown too much; call it once started."""
        assert self._ports is not None
        assert self._http is not None
        grpc_ports, http = self._ports, self._http
        ports = [port for port in (self.port, self.admin_port) if port]
        self._gate = Gate(
            OwnProcess(ports),
            grpc_ports.connections,
            expected=lambda: grpc_ports.held_bytes() + http.held_bytes,
            others=lambda: http.connections,
        )
        self._gate.start()

    async def stop(self) -> None:
        """Report NOT_SERVING and take no new requests; current ones get `drain_s` seconds."""
        self._ready, self._stopping = False, True
        if self._gate is not None:
            await asyncio.to_thread(self._gate.stop)
        for task in (self._renewing, self._watching):
            if task is not None:
                task.cancel()
        await self._health.drain()
        self._decoder.streams.drain()
        await self._drain()
        if self._admin is not None:
            self._admin.close()
        await asyncio.to_thread(self._shadow.stop)
        if self.console is not None:
            await asyncio.to_thread(self.console.close)
        await asyncio.to_thread(self._work.close)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        if self._http is not None:
            await self._http.stop()

    async def _drain(self) -> None:
        if self._ports is None:
            return
        seconds = self.config.drain_s
        draining = asyncio.gather(*(server.stop(seconds) for server in self._servers))
        settled = asyncio.ensure_future(self._ports.settled())
        await asyncio.wait((draining, settled), return_when=asyncio.FIRST_COMPLETED)
        settled.cancel()
        last_s = min(seconds, LAST_REPLIES_S)
        await asyncio.gather(*(server.stop(last_s) for server in self._servers), draining)

    async def _listen_http(self, api_keys: ApiKeys | None) -> int:
        config = self.config
        # Scrapers and probes expect plain HTTP, so only a public console turns on TLS.
        public = config.serves_console and not is_loopback(config.host)
        client_ca = config.tls_client_ca
        tls = http_tls(config.tls_cert, config.tls_key, client_ca) if public else None
        self.http_scheme = "http" if tls is None else "https"
        view = ServerView(
            config=config,
            routes=lambda: self.repository.routes,
            admit=self._work.admit,
            registry=self.metrics.registry,
            ready=lambda: self._ready,
            api_keys=api_keys,
            secure=tls is not None,
        )
        self.console = open_console(view)
        local = is_loopback(config.host) and api_keys is None
        certified = tls is not None and client_ca is not None
        pages = application(
            self.metrics.text, view.ready, lambda: self._stopping, self.console, local, certified
        )
        self._renewing = asyncio.create_task(keep_renewing(api_keys, tls))
        self._http = Listener(pages)
        context = None if tls is None else tls.value
        return await self._http.start(config.host, config.http_port, context)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await asyncio.to_thread(self.repository.fail_written)

    def _lose(self, error: DeviceLost) -> None:
        if self.lost is None:
            self.lost, self._ready, self._stopping = error, False, True
            event(log, logging.ERROR, "device_lost", str(error), device=error.device)
            self.losing.set()

    def _publish(self) -> None:
        routes = self.repository.routes
        self._ready = self._health.publish(routes) and not self._stopping
        if self._gate is not None:
            self._gate.settle()

    def _listen(self, ports: Ports) -> None:
        config = self.config
        dims = [v.served.decoder.index.dim for v in self.repository.versions() if v.served]
        max_bytes = config.max_message_bytes(max(dims, default=0))
        models = ModelsService(config, self.repository, max_bytes)
        kserve = kserve_services()
        handlers = [self._decoder.handler(), service(models, self.metrics), self._health.handler()]
        if kserve is not None:
            infer = kserve.KserveService(self.repository, self._decoder)
            handlers.append(service(infer, self.metrics))
        server = ports.server(READ, handlers, max_bytes)
        self._servers.append(server)
        self.port = ports.bind(server, "port", config.host, config.port)
        if config.admin:
            self._admin = AdminService(models, self.metrics)
            handlers = [service(self._admin, self.metrics)]
            if kserve is not None:
                handlers.append(service(kserve.KserveAdmin(self._admin), self.metrics))
            admin = ports.server(ADMIN, handlers, MESSAGE_OVERHEAD)
            self._servers.append(admin)
            self.admin_port = ports.bind(admin, "admin_port", config.admin_host, config.admin_port)


def create_server(config: ServeConfig, *, repository: Repository | None = None) -> Server:
    """Make a server to `start` in a running loop. Port 0 takes a free one."""
    return Server(config, repository or Repository(config))


def serve(
    config: ServeConfig,
    *,
    progress: ProgressShown = lambda: nullcontext(no_progress),
    repository: Repository | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain. A second signal ends the process.

    Raises like `Server.start`, and DeviceLost after draining if a GPU fails. The context
    `progress()` is open while versions load.
    """
    configure(config.log_format, config.log_level)
    _return_memory()
    uvloop.run(_serve(config, progress, repository))


def _return_memory() -> None:
    """Make glibc return large blocks to the system when they are freed, and keep few arenas."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE)):
            mallopt(name, value)
        mallopt(M_ARENA_MAX, ARENAS)


async def _serve(
    config: ServeConfig, progress: ProgressShown, repository: Repository | None
) -> None:
    stopping = first_signal()
    server = create_server(config, repository=repository)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        with progress() as report:
            started = asyncio.ensure_future(server.start(report))
            await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started
            gc.collect()
            gc.freeze()  # so that no collection visits the loaded indexes
            if sys.platform == "linux":
                server.guard()
            _announce(server)
            lost = asyncio.ensure_future(server.losing.wait())
            await asyncio.wait((stopped, lost), return_when=asyncio.FIRST_COMPLETED)
            message = f"stopping: {config.drain_s:g} s for what is in flight"
            event(log, logging.INFO, "stopping", message, drain_s=config.drain_s)
        end_after(config.drain_s * started.done(), partial(_cut_short, server))
        started.cancel()
    finally:
        await server.stop()
    event(log, logging.INFO, "stopped", "stopped")
    if server.lost is not None:
        raise server.lost


def _cut_short(server: Server, seconds: float) -> int:
    message = f"ended: something still ran {seconds:g} s after the signal"
    event(log, logging.WARNING, "cut_short", message, seconds=seconds)
    return 0 if server.lost is None else 1


def _announce(server: Server) -> None:
    if server.admin_port:
        admin = address(server.config.admin_host, server.admin_port)
        event(log, logging.INFO, "start", f"Admin at {admin}", admin=admin)
    host = server.config.host
    grpc_at = address(host, server.port)
    http = f"{server.http_scheme}://{address(host, server.http_port)}"
    message, fields = f"gRPC at {grpc_at}, metrics at {http}/metrics", dict[str, Any]()
    if server.console is not None:
        message, fields = f"{message}, console at {http}/", {"console": f"{http}/"}
    message += ", KServe too" if has_kserve() else ", no KServe ([kserve] is not installed)"
    fields |= {"grpc": grpc_at, "metrics": f"{http}/metrics", "kserve": has_kserve()}
    event(log, logging.INFO, "start", message, **fields)
