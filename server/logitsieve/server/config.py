from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import BELOW_1
from logitsieve.gpu.open import DEVICES, is_device
from logitsieve.utils.environment import is_loopback
from logitsieve.utils.options import check_ranges, option

ANSWER_BYTES = 8  # an id with its number
MESSAGE_OVERHEAD = 64 << 10  # bytes of a request without its arrays
ROW_OVERHEAD = 32  # bytes of a seed (or of a score, length and flag) and of four offsets
MAX_BATCH_DELAY_US = 200
MAX_CONNECTION_S = 7 * 86_400
MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Options of `logitsieve serve`; InvalidRequest names a bad one."""

    model_repository: Path = option(Path("models"), "Folder of <name>/<version>/ indexes.")
    host: str = option("127.0.0.1", "Address that both ports bind, by default loopback.")
    port: int = option(50051, "gRPC port; 0 takes a free one and prints it.", 0, MAX_PORT)
    http_port: int = option(
        8080, "HTTP port of metrics, probes and console; 0 takes a free one.", 0, MAX_PORT
    )
    console: bool | None = option(
        None, "Whether to serve the console; by default on loopback, if `[console]` is installed."
    )
    admin: bool = option(True, "Whether there is an admin port.")
    admin_host: str = option("127.0.0.1", "Address the admin port binds.")
    admin_port: int = option(
        50052, "gRPC port of Admin; 0 takes a free one and prints it.", 0, MAX_PORT
    )
    device: str = option("cpu", "Where models answer: cpu, or a GPU: cuda, cuda:0, cuda:1, ...")
    max_error: float | None = option(
        None,
        "The largest chance that a row is wrong, for requests that name neither it, a head nor a"
        " precision; 0: a proof. Unset: the index's target precision, or without one 1e-15.",
        0,
        BELOW_1,
    )
    threads: int = option(1, "Threads that compute: requests at once, rows of one request.", 1)
    max_rows: int = option(1024, "Most rows of a request; also bounds the size of a message.", 1)
    max_k: int = option(1024, "Most answers, scored ids or beams per row.", 1)
    max_samples: int = option(1024, "Most draws per row.", 1)
    max_constraint_ids: int = option(
        1 << 20, "Most ids, and words of masks, in all constraints of a request together.", 0
    )
    request_memory_mib: int = option(
        1024, "Most MiB of requests and replies in memory; calls beyond it wait to be read.", 1
    )
    max_streams: int = option(
        100, "Most open Decode streams; each may hold one message beyond the memory of requests.", 1
    )
    max_connection_calls: int = option(
        100, "Most calls and streams of a connection at a time; a client lets others wait.", 1
    )
    max_connections: int = option(
        256, "Most connections of a gRPC port; those that are silent longest make room.", 1
    )
    max_in_flight: int = option(
        256, "Most requests waiting or computing; more are refused with a time to retry.", 1
    )
    max_queue_rows: int = option(
        8192, "Most rows waiting; requests over it are told when to retry.", 1
    )
    batch_delay_us: int = option(
        100,
        "Most microseconds that a small request waits to be batched; 0: none.",
        0,
        MAX_BATCH_DELAY_US,
    )
    drain_s: float = option(10.0, "Seconds that requests in flight get to finish after SIGTERM.", 0)
    max_connection_age_s: float = option(
        0.0, "Seconds after which a client must connect again; 0: never.", 0, MAX_CONNECTION_S
    )
    max_connection_age_grace_s: float = option(
        30.0,
        "Seconds that calls and streams of such a connection get to finish.",
        0,
        MAX_CONNECTION_S,
    )
    kernel_cache: Path | None = option(
        None, "Writable folder that keeps compiled kernels between starts."
    )
    verify: Literal["full", "sizes"] = option(
        "full", "full: check the digest of every part when opening; sizes: lengths only."
    )
    shadow_share: float = option(
        0.001, "Share of live rows that are answered again exactly, in the background.", 0, 1
    )
    shadow_cpu: float = option(0.02, "Largest share of one core for these answers.", 0, 1)
    tls_cert: Path | None = option(None, "PEM file of the certificate chain; turns on TLS.")
    tls_key: Path | None = option(None, "PEM file of the certificate's private key.")
    tls_client_ca: Path | None = option(
        None, "PEM file of CAs; clients must have a certificate that one of them signed."
    )
    api_key_file: Path | None = option(
        None, "File of API keys; calls without one of them are refused."
    )
    reflection: bool = option(False, "Whether gRPC reflection describes the services.")
    otlp_endpoint: str | None = option(
        None, "OTLP endpoint (gRPC) that gets a span of each call: http://localhost:4317."
    )
    log_format: Literal["text", "json"] = option("text", "How lines of the log are written.")
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "Minimum level of the log."
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, kind in get_type_hints(ServeConfig).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise InvalidRequest(name, getattr(self, name), ", ".join(get_args(kind)))
        if not is_device(self.device):
            raise InvalidRequest("device", repr(self.device), DEVICES)
        self._check_tls()
        self._check_access()

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise InvalidRequest(missing, "nothing", "a file: certificate and key go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidRequest("tls_client_ca", self.tls_client_ca, "nothing without tls_cert")

    def _check_access(self) -> None:
        if self.api_key_file is not None and self.tls_cert is None:
            for name in ("host", "admin_host") if self.admin else ("host",):
                if not is_loopback(host := getattr(self, name)):
                    allowed = "loopback: API keys do not travel as plain text, set tls_cert"
                    raise InvalidRequest(name, host, allowed)
        if self.console and self.api_key_file is None and not is_loopback(self.host):
            allowed = f"api_key_file and tls_cert, or a host that is loopback, not {self.host}"
            raise InvalidRequest("console", "to be served to others", allowed)
        restricted = self.api_key_file is not None or self.tls_client_ca is not None
        if self.admin and not restricted and not is_loopback(self.admin_host):
            allowed = "loopback, unless api_key_file or tls_client_ca say who may call"
            raise InvalidRequest("admin_host", self.admin_host, allowed)

    @property
    def serves_console(self) -> bool:
        return is_loopback(self.host) if self.console is None else self.console

    @property
    def max_reply_bytes(self) -> int:
        answers = self.max_rows * max(self.max_k, self.max_samples)
        return ANSWER_BYTES * answers + MESSAGE_OVERHEAD

    def max_message_bytes(self, dim: int) -> int:
        """Return the size of the largest request at hidden size `dim`."""
        row = 4 * (dim + self.max_k) + ROW_OVERHEAD
        ids = 8 * self.max_constraint_ids
        return self.max_rows * row + ids + MESSAGE_OVERHEAD
