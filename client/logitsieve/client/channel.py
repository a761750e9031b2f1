"""The channel of a client: its TLS and its token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.hosts import is_loopback


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Whom to trust, and as whom to come: PEM files."""

    ca: Path | str | None = None  # authorities of the server's certificate; None: gRPC's own list
    cert: Path | str | None = None  # the client's own, with its key, where the server asks for one
    key: Path | str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """InvalidRequest names the file that cannot be read."""
        if (self.cert is None) != (self.key is None):
            missing = "tls.key" if self.key is None else "tls.cert"
            raise InvalidRequest(missing, "nothing", "a file: certificate and key go together")
        return grpc.ssl_channel_credentials(
            _read("tls.ca", self.ca), _read("tls.key", self.key), _read("tls.cert", self.cert)
        )


def open_channel(
    address: str, tls: Tls | None, options: list[tuple[str, Any]], api: Any = grpc
) -> Any:
    """One that connects at the first call, of `grpc` or of `grpc.aio`."""
    if tls is None:
        return api.insecure_channel(address, options=options)
    return api.secure_channel(address, tls.credentials(), options=options)


def to_target(address: str | Sequence[str]) -> str:
    """One address as it is, several as the target that gRPC has for them.

    InvalidRequest unless several are all IPv4 or all IPv6 with ports: a name may stand for many
    servers by itself, but gRPC takes no list of names.
    """
    if isinstance(address, str):
        return address
    if len(address) == 1:
        return address[0]
    for scheme, kind in (("ipv4", IPv4Address), ("ipv6", IPv6Address)):
        if address and all(_is_numeric(one, kind) for one in address):
            return f"{scheme}:{','.join(address)}"
    raise InvalidRequest("address", list(address), "IPs with ports, all v4 or all v6")


def _is_numeric(address: str, kind: type[IPv4Address | IPv6Address]) -> bool:
    host, _, port = address.rpartition(":")
    try:
        kind(host.strip("[]"))
    except ValueError:
        return False
    return port.isdecimal()


def to_metadata(token: str, address: str, tls: Tls | None) -> tuple[tuple[str, str], ...]:
    """What every call brings. InvalidRequest where a token would leave the machine in the clear."""
    if not token:
        return ()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("token", "other characters", "printable ASCII without spaces")
    if tls is None and not _stays_here(address):
        raise InvalidRequest("tls", "none", f"TLS, for a token that goes to {address}")
    return (("authorization", f"Bearer {token}"),)


def _stays_here(address: str) -> bool:
    """Whether all of "host:port", "[host]:port", "ipv4:host:port,host:port" are this machine."""
    scheme, _, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    targets = rest.lstrip("/") if scheme in ("ipv4", "ipv6", "dns") else address
    hosts = [target.rpartition(":")[0].strip("[]") for target in targets.split(",")]
    return all(is_loopback(host) for host in hosts)


def _read(field: str, file: Path | str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(field, error, "a PEM file") from error
