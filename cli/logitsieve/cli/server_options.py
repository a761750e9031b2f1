"""Options of the commands that connect to a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from logitsieve.cli.options import flag, read_text
from logitsieve.client import AdminClient, DecoderClient, Tls
from logitsieve.client.connection import seconds
from logitsieve.client.decoder_client import ADDRESS

Client = TypeVar("Client", AdminClient, DecoderClient)

TIMEOUT = "Seconds to wait for the answer: more than 0, at most 3600."


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    address: str = flag(
        ADDRESS, "host:port of the server.", envvar="LOGITSIEVE_ADDRESS", show_envvar=False
    )
    timeout_s: float = flag(5.0, TIMEOUT, callback=seconds)
    tls: bool = flag(False, "Connect with TLS.", "--tls")
    tls_ca: Path | None = flag(
        None, "PEM file of the authorities that sign the server's certificate."
    )
    tls_cert: Path | None = flag(None, "PEM file of the client's certificate.")
    tls_key: Path | None = flag(None, "PEM file of the private key of --tls-cert.")
    token_file: Path | None = flag(None, "File with a bearer token alone.")

    def open(self, client: type[Client]) -> Client:
        """Return a client, with TLS if one of its options asks for it."""
        by_tls = self.tls or self.tls_ca or self.tls_cert or self.tls_key
        tls = Tls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key) if by_tls else None
        token = None  # LOGITSIEVE_TOKEN
        if self.token_file is not None:
            token = read_text("token_file", self.token_file, "a file with a token").strip()
        return client(self.address, timeout_s=self.timeout_s, tls=tls, token=token)
