"""How a server is set up: the one list of its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from logitsieve.types.errors import InvalidRequest

# What a request holds besides its arrays: names, knobs, framing.
MESSAGE_OVERHEAD = 64 << 10
# Bytes of a row besides hidden and targets: a seed, or score, length and whether it has finished,
# and an offset in each of four sets of ids.
ROW_OVERHEAD = 32


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
    drain_s: float = field(
        default=10.0,
        metadata={"help": "Seconds that requests in flight get to finish after SIGTERM."},
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

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise InvalidRequest(name, getattr(self, name), "0..65535")
        for name in ("threads", "max_rows", "max_k", "max_samples", "max_in_flight"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), "at least 1")
        if self.max_constraint_ids < 0:
            raise InvalidRequest("max_constraint_ids", self.max_constraint_ids, "0 or more")
        if not self.drain_s >= 0:
            raise InvalidRequest("drain_s", self.drain_s, "0 or more seconds")
        if self.verify not in ("full", "sizes"):
            raise InvalidRequest("verify", self.verify, "full, sizes")

    def max_message_bytes(self, dim: int) -> int:
        """The largest request for a model of hidden size `dim`: all rows, targets and ids."""
        row = 4 * (dim + self.max_k) + ROW_OVERHEAD
        ids = 8 * self.max_constraint_ids  # an id and its bias
        return self.max_rows * row + ids + MESSAGE_OVERHEAD
