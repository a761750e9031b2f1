import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Sequence

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import event
from logitsieve.server.metrics import Metrics
from logitsieve.server.rpc.entrance import Entrance
from logitsieve.server.rpc.health import reflection
from logitsieve.server.rpc.intake import COPIES, Intake
from logitsieve.server.security import READ, ApiKeys, certificates
from logitsieve.utils.environment import is_loopback

log = logging.getLogger(__name__)

METADATA_BYTES, MOST_METADATA_BYTES = 8 << 10, 16 << 10
HANDSHAKE_MS = 10_000
IDLE_MS = 1_800_000
UNSEEN_S = 1  # gRPC drops a call that the event loop has not accepted by then
FILES = 160  # open files other than gRPC connections
PINGS_MS = 5_000  # gRPC's default would close streams that are pinged every 30 s
UNREAD_S = 2.0  # for messages to arrive while the server stops
LOOK_S = 0.05
PROBES = 8  # one part in PROBES of the memory is kept for health checks
PROBE_S, QUICK_PROBE_S = 1.0, 0.05


class Ports:
    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self._config, self._metrics = config, metrics
        self._certificates = certificates(config)
        self.api_keys = None if config.api_key_file is None else ApiKeys(config.api_key_file)
        self.connections = fitting(config.max_connections, 1 + config.admin)
        self._intakes: list[Intake] = []
        self._probes: list[Intake] = []
        metrics.in_flight.set_function(lambda: sum(intake.calls for intake in self._intakes))
        metrics.waiting.set_function(lambda: sum(intake.waiting for intake in self._intakes))

    async def settled(self) -> None:
        intakes = *self._intakes, *self._probes
        for intake in intakes:
            asyncio.get_running_loop().call_later(UNREAD_S, intake.give_up)
        while any(intake.calls for intake in intakes):
            await asyncio.sleep(LOOK_S)

    def held_bytes(self) -> int:

        return COPIES * sum(intake.bytes for intake in (*self._intakes, *self._probes))

    def server(
        self, scope: str, handlers: Sequence[grpc.GenericRpcHandler], max_message_bytes: int
    ) -> grpc.aio.Server:
        """Make an unbound server. If there are API keys, calls need one of this scope."""
        config = self._config
        reply = config.max_reply_bytes if scope == READ else 0
        memory = config.request_memory_mib << 20
        intake = Intake(memory - memory // PROBES, max_message_bytes, reply)
        probes = Intake(
            memory // PROBES, max_message_bytes, message_s=PROBE_S, quick_s=QUICK_PROBE_S
        )
        self._intakes.append(intake)
        self._probes.append(probes)
        if config.reflection:
            handlers = (*handlers, *reflection(handlers))
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # or two servers could share a port by accident
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                # No compression: gRPC inflates a message before it checks its length.
                ("grpc.compression_enabled_algorithms_bitset", 1),
                # With probes, gRPC may read megabytes of each waiting call.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", PINGS_MS),
                # Otherwise idle connections may ping only every two hours.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_metadata_size", METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MOST_METADATA_BYTES),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_concurrent_streams", config.max_connection_calls),
                ("grpc.max_allowed_incoming_connections", self.connections),
                ("grpc.server_max_unrequested_time_in_server", UNSEEN_S),
                ("grpc.enable_channelz", 0),  # it would keep a record of each connection
                ("grpc.max_connection_idle_ms", IDLE_MS),
                *ages(config),
            ]
        )
        entrance = Entrance(handlers, intake, probes, self._metrics, self.api_keys, scope)
        server.add_generic_rpc_handlers((entrance,))
        return server

    def bind(self, server: grpc.aio.Server, field: str, host: str, port: int) -> int:

        where = address(host, port)
        try:
            if self._certificates is None:
                bound = int(server.add_insecure_port(where))
            else:
                bound = int(server.add_secure_port(where, self._certificates()))
        except RuntimeError as error:
            raise taken(field, host, port) from error
        if self.api_keys is None and self._config.tls_client_ca is None and not is_loopback(host):
            lacking = "no TLS and no API keys" if self._certificates is None else "no API keys"
            log.warning("%s: %s: whoever reaches it may call", where, lacking)
        return bound


def ages(config: ServeConfig) -> list[tuple[str, int]]:
    if not config.max_connection_age_s:
        return []
    return [
        ("grpc.max_connection_age_ms", max(1, round(config.max_connection_age_s * 1000))),
        ("grpc.max_connection_age_grace_ms", round(config.max_connection_age_grace_s * 1000)),
    ]


def fitting(connections: int, ports: int) -> int:
    """Raise the limit of open files if needed; return how many connections each port may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES + connections * ports
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            fit = max(1, max(soft - FILES, soft // 2) // ports)
            message = f"{soft} open files leave {fit} connections a port, not {connections}"
            event(log, logging.WARNING, "few_files", message, files=soft, connections=fit)
            return fit
    return connections


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(field: str, host: str, port: int) -> None:
    """Raise InvalidRequest if the port cannot be bound, where gRPC would write to stderr."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise taken(field, host, port, error) from error


def taken(field: str, host: str, port: int, error: OSError | None = None) -> InvalidRequest:
    got = address(host, port)
    if error is not None and error.errno == errno.EADDRINUSE:
        got += ", which is in use"
    return InvalidRequest(field, got, "an address that is free and can be bound")
