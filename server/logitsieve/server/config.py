"""How a server is set up: the one list of its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.open import DEVICES, is_device
from logitsieve.index.manifest import is_name
from logitsieve.utils.hosts import is_loopback

# What a request holds besides its arrays: names, knobs, framing.
MESSAGE_OVERHEAD = 64 << 10
# Bytes of a row besides hidden and targets: a seed, or score, length and whether it has finished,
# and an offset in each of four sets of ids.
ROW_OVERHEAD = 32

# Longer than a hop to a thread and back, and short against a call over the network.
MAX_BATCH_DELAY_US = 200

# gRPC counts connections' ages in milliseconds of 31 bits: more than three weeks.
MAX_CONNECTION_S = 7 * 86_400

POSITIVE = ("threads", "max_rows", "max_k", "max_samples", "max_in_flight", "max_queue_rows")
CHOICES = {"verify": ("full", "sizes"), "log_format": ("text", "json")}


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Options of `logitsieve serve`; InvalidRequest names the one that makes no sense."""

    models: Path = field(
        default=Path("models"),
        metadata={"help": "Folder of models/<name>/<version>/ indexes."},
    )
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address both ports bind; loopback unless you say otherwise."},
    )
    port: int = field(
        default=50051, metadata={"help": "gRPC port; 0 takes a free one and prints it."}
    )
    metrics_port: int = field(
        default=9090,
        metadata={"help": "HTTP port of /metrics, /healthz and /readyz; 0 takes a free one."},
    )
    admin: bool = field(default=True, metadata={"help": "Whether there is an admin port."})
    admin_host: str = field(default="127.0.0.1", metadata={"help": "Address the admin port binds."})
    admin_port: int = field(
        default=50052,
        metadata={"help": "gRPC port of Admin; 0 takes a free one and prints it."},
    )
    device: str = field(
        default="cpu",
        metadata={"help": "Where models answer: cpu, or a GPU: cuda, cuda:0, cuda:1, ..."},
    )
    model_devices: tuple[str, ...] = field(
        default=(),
        metadata={"help": "name=device of a model that answers elsewhere than --device says."},
    )
    threads: int = field(
        default=1, metadata={"help": "Threads that compute: requests at once, rows of one request."}
    )
    max_rows: int = field(
        default=1024,
        metadata={"help": "Most rows of a request; also bounds the size of a message."},
    )
    max_k: int = field(default=1024, metadata={"help": "Most answers, targets or beams a row."})
    max_samples: int = field(default=1024, metadata={"help": "Most draws a row."})
    max_constraint_ids: int = field(
        default=1 << 20, metadata={"help": "Most ids in all constraints of a request together."}
    )
    max_in_flight: int = field(
        default=256,
        metadata={"help": "Most requests waiting or computing; those over it are told to retry."},
    )
    max_queue_rows: int = field(
        default=8192,
        metadata={"help": "Most rows waiting; requests over it are told to retry."},
    )
    batch_delay_us: int = field(
        default=100,
        metadata={"help": "Most microseconds that a small request waits to be batched; 0: none."},
    )
    drain_s: float = field(
        default=10.0,
        metadata={"help": "Seconds that requests in flight get to finish after SIGTERM."},
    )
    connection_age_s: float = field(
        default=0.0,
        metadata={"help": "Seconds after which a client is asked to connect again; 0: never."},
    )
    connection_grace_s: float = field(
        default=30.0,
        metadata={"help": "Seconds that calls and streams of such a connection get to finish."},
    )
    kernel_cache: Path | None = field(
        default=None,
        metadata={"help": "Writable folder that keeps compiled kernels between starts."},
    )
    verify: Literal["full", "sizes"] = field(
        default="full",
        metadata={
            "help": "full: check the digest of every part when opening; sizes: lengths only."
        },
    )
    shadow_share: float = field(
        default=0.001,
        metadata={"help": "Share of live rows that are answered again exactly, in the background."},
    )
    shadow_cpu: float = field(
        default=0.02, metadata={"help": "Share of one core that these answers may take at most."}
    )
    tls_cert: Path | None = field(
        default=None, metadata={"help": "PEM file of the certificate chain; turns on TLS."}
    )
    tls_key: Path | None = field(
        default=None, metadata={"help": "PEM file of the certificate's private key."}
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata={"help": "PEM file of authorities; clients must have a certificate of theirs."},
    )
    tokens: Path | None = field(
        default=None, metadata={"help": "File of bearer tokens; calls without one are refused."}
    )
    reflection: bool = field(
        default=False, metadata={"help": "Whether gRPC reflection tells what the services are."}
    )
    log_format: Literal["text", "json"] = field(
        default="text", metadata={"help": "How lines of the log are written."}
    )

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port", "admin_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise InvalidRequest(name, getattr(self, name), "0..65535")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), "at least 1")
        if not 0 <= self.batch_delay_us <= MAX_BATCH_DELAY_US:
            allowed = f"0..{MAX_BATCH_DELAY_US} microseconds"
            raise InvalidRequest("batch_delay_us", self.batch_delay_us, allowed)
        for name in ("shadow_share", "shadow_cpu"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidRequest(name, getattr(self, name), "a share in 0..1")
        if self.max_constraint_ids < 0:
            raise InvalidRequest("max_constraint_ids", self.max_constraint_ids, "0 or more")
        if not self.drain_s >= 0:
            raise InvalidRequest("drain_s", self.drain_s, "0 or more seconds")
        for name in ("connection_age_s", "connection_grace_s"):
            if not 0 <= getattr(self, name) <= MAX_CONNECTION_S:
                allowed = f"0..{MAX_CONNECTION_S} seconds"
                raise InvalidRequest(name, getattr(self, name), allowed)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidRequest(name, getattr(self, name), ", ".join(choices))
        self._check_devices()
        self._check_tls()
        self._check_who_may_call()

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise InvalidRequest(missing, "nothing", "a file: certificate and key go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidRequest("tls_client_ca", self.tls_client_ca, "nothing without tls_cert")

    def _check_who_may_call(self) -> None:
        if self.tokens is not None and self.tls_cert is None:
            for name in ("host", "admin_host") if self.admin else ("host",):
                if not is_loopback(host := getattr(self, name)):
                    allowed = "loopback: tokens do not travel as plain text, set tls_cert"
                    raise InvalidRequest(name, host, allowed)
        known = self.tokens is not None or self.tls_client_ca is not None
        if self.admin and not known and not is_loopback(self.admin_host):
            allowed = "loopback, unless tokens or tls_client_ca say who may call"
            raise InvalidRequest("admin_host", self.admin_host, allowed)

    def _check_devices(self) -> None:
        if not is_device(self.device):
            raise InvalidRequest("device", repr(self.device), DEVICES)
        for pair in self.model_devices:
            name, _, device = pair.partition("=")
            if not is_name(name) or not is_device(device):
                allowed = f"a model's name, = and one of {DEVICES}"
                raise InvalidRequest("model_devices", repr(pair), allowed)
        if len(self.own_devices) < len(self.model_devices):
            allowed = "each model once"
            raise InvalidRequest("model_devices", ", ".join(self.model_devices), allowed)

    @property
    def own_devices(self) -> dict[str, str]:
        """model -> its device, of those that `model_devices` names."""
        return dict(pair.split("=") for pair in self.model_devices)

    def device_of(self, model: str) -> str:
        """Where a model answers."""
        return self.own_devices.get(model, self.device)

    def max_message_bytes(self, dim: int) -> int:
        """The largest request for a model of hidden size `dim`: all rows, targets and ids."""
        row = 4 * (dim + self.max_k) + ROW_OVERHEAD
        ids = 8 * self.max_constraint_ids  # an id and its bias
        return self.max_rows * row + ids + MESSAGE_OVERHEAD
