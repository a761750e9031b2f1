"""An OpenAI-compatible HTTP endpoint over a GGUF model, exact in scores and draws; its options."""

from dataclasses import dataclass
from pathlib import Path

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.watermark import WatermarkKey
from logitsieve.server.config import MAX_PORT
from logitsieve.utils.environment import is_loopback
from logitsieve.utils.options import check_ranges, option


@dataclass(frozen=True, kw_only=True)
class CompletionsConfig:
    """Options of `logitsieve serve-gguf`; InvalidRequest names a bad one."""

    host: str = option("127.0.0.1", "Address to bind, by default loopback.")
    port: int = option(8080, "HTTP port; 0 takes a free one and prints it.", 0, MAX_PORT)
    alias: str | None = option(None, "Name of the model in requests; by default its file's.")
    parallel: int = option(4, "Prompts and continuations that are decoded together.", 1, 64)
    ctx_size: int | None = option(
        None,
        "Tokens of each with its prompt; by default as many as in training, at most 4096.",
        1,
        1 << 20,
    )
    lookup: bool = option(
        False, "Read ahead tokens that followed the last ones before, which changes no byte."
    )
    watermark_key_file: Path | None = option(
        None, "File of a secret of 16 to 64 bytes that marks all draws, for `logitsieve detect`."
    )
    max_queue_size: int = option(1024, "Most prompts that wait; more are told to retry.", 1)
    timeout_s: float = option(600.0, "Seconds that a request may take, waiting included.", 1, 86400)
    stuck_s: float = option(
        300.0, "Seconds that a step of llama.cpp may take before its process is restarted.", 1
    )
    drain_s: float = option(10.0, "Seconds that requests get to finish after SIGTERM.", 0)
    api_key_file: Path | None = option(
        None, "File of API keys (docs/security.md); requests without one are refused."
    )
    tls_cert: Path | None = option(None, "PEM file of the certificate chain; turns on TLS.")
    tls_key: Path | None = option(None, "PEM file of the certificate's private key.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise InvalidRequest(missing, "nothing", "a file: certificate and key go together")
        if self.api_key_file is not None and self.tls_cert is None and not is_loopback(self.host):
            allowed = "loopback: API keys do not travel as plain text, set tls_cert"
            raise InvalidRequest("host", self.host, allowed)
        self.watermark()

    def watermark(self) -> WatermarkKey | None:

        path = self.watermark_key_file
        return None if path is None else WatermarkKey.read(path, "watermark_key_file")
