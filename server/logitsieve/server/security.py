"""Certificates and API keys from files, which are read again when they change.

A file of keys has lines `scope:key`; the scope `admin` includes the others.
"""

import asyncio
import hmac
import logging
import re
import ssl
from codecs import BOM_UTF8
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from logitsieve.api.errors import InvalidRequest, PermissionDenied, Unauthenticated
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import event

log = logging.getLogger(__name__)
T = TypeVar("T")

READ, CONSOLE, ADMIN = "read", "console", "admin"
SCOPES = {
    READ.encode(): frozenset({READ}),
    CONSOLE.encode(): frozenset({CONSOLE}),
    ADMIN.encode(): frozenset({READ, CONSOLE, ADMIN}),
}
HEADER = "authorization"
RENEW_S = 0.5
KEY = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")  # RFC 6750's b64token
LINE = "scope:key: read, console or admin; 16 or more of A-Z a-z 0-9 . _ ~ + / -"
PEMS = "PEM files: a certificate chain with its unencrypted key, authorities of clients"

EXPOSED = 0o027  # writable by the group, or accessible to others

Granted = list[tuple[bytes, frozenset[str]]]


class ReloadingFile(Generic[T]):
    """The last good value of `read()`, which reads `files`; the first of them is secret.

    InvalidRequest names the option if the files cannot be used at first.
    """

    def __init__(self, option: str, read: Callable[[], T], allowed: str, *files: Path) -> None:
        self._option, self._read, self._files = option, read, files
        self._complaint = ""
        try:
            self._stamp = self._stats()
            self.value = read()
            self._warn_if_exposed()
        except OSError as error:
            raise InvalidRequest(option, error, allowed) from error

    def renew(self) -> bool:
        """Read changed files; return whether the value changed. A failure is logged once."""
        try:
            stamp = self._stats()
            if stamp == self._stamp:
                return False
            value = self._read()
            if self._stats() != stamp:  # they are being replaced just now
                return False
            self._warn_if_exposed()
        except (OSError, InvalidRequest) as error:
            self._complain(str(error))
            return False
        self._stamp, self.value, self._complaint = stamp, value, ""
        event(log, logging.INFO, "renewed", f"{self._option}: renewed", option=self._option)
        return True

    def _stats(self) -> list[tuple[int, int, int]]:
        stats = [file.stat() for file in self._files]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]

    def _complain(self, error: str) -> None:
        if error != self._complaint:
            self._complaint = error
            message = f"{self._option}: the last good one stays: {error}"
            event(log, logging.ERROR, "not_renewed", message, option=self._option, error=error)

    def _warn_if_exposed(self) -> None:
        if self._files[0].stat().st_mode & EXPOSED:
            log.warning("%s: others may use it: chmod o-rwx,g-w %s", self._option, self._files[0])


class ApiKeys(ReloadingFile[Granted]):
    """The API keys of a file, as hashes; `check` compares all of them, in constant time."""

    def __init__(self, path: Path) -> None:
        super().__init__("api_key_file", lambda: read_api_keys(path), "a file of API keys", path)

    def check(self, header: str, scope: str) -> None:
        """Take "Bearer <key>". Unauthenticated for other keys, PermissionDenied for its scope."""
        kind, _, key = header.partition(" ")
        digest = sha256(key.strip().encode()).digest()
        matching = [
            scopes for granted, scopes in self.value if hmac.compare_digest(granted, digest)
        ]
        if kind.lower() != "bearer" or not matching:
            raise Unauthenticated(f"{HEADER}: no API key of this server", HEADER)
        if not any(scope in scopes for scopes in matching):
            raise PermissionDenied(f"{HEADER}: this takes an API key of scope {scope}", HEADER)


async def keep_renewing(*files: ReloadingFile[Any] | None) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        for file in files:
            if file is not None:
                await asyncio.to_thread(file.renew)


def read_api_keys(path: Path) -> Granted:
    """Read one key or more. InvalidRequest names a line, not its text."""
    granted: Granted = []
    # str.splitlines would also split inside comments, at U+2028 for example.
    lines = path.read_bytes().removeprefix(BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith(b"#"):
            continue
        scope, _, key = (part.strip() for part in line.partition(b":"))
        if scope not in SCOPES or not KEY.fullmatch(key):
            raise InvalidRequest("api_key_file", f"something else at {path}:{number}", LINE)
        granted.append((sha256(key).digest(), SCOPES[scope]))
    if not granted:
        raise InvalidRequest("api_key_file", f"none in {path}", LINE)
    return granted


def certificates(config: ServeConfig) -> Callable[[], grpc.ServerCredentials] | None:
    cert, key, client_ca = config.tls_cert, config.tls_key, config.tls_client_ca
    if cert is None or key is None:
        return None
    files = (key, cert) if client_ca is None else (key, cert, client_ca)
    pems = ReloadingFile("tls_cert", lambda: read_pems(cert, key, client_ca), PEMS, *files)

    def credentials() -> grpc.ServerCredentials:
        current = pems.value

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal current  # gRPC calls this when a client connects
            pems.renew()
            if pems.value is current:
                return None
            current = pems.value
            return current

        return grpc.dynamic_ssl_server_credentials(
            current, renewed, require_client_authentication=client_ca is not None
        )

    return credentials


def http_tls(
    cert: Path | None, key: Path | None, client_ca: Path | None = None
) -> ReloadingFile[ssl.SSLContext] | None:
    """Return TLS for an HTTP port, or None without a certificate.

    With `client_ca`, clients are asked for a certificate, but may connect without one.
    """
    if cert is None or key is None:
        return None
    files = (key, cert) if client_ca is None else (key, cert, client_ca)
    pems = ReloadingFile("tls_cert", lambda: tls_context(cert, key, client_ca), PEMS, *files)

    def present(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = pems.value

    pems.value.sni_callback = present
    return pems


def tls_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # or OpenSSL asks at the terminal
    except OSError as error:
        raise InvalidRequest("tls_cert", f"{cert}, {key} ({error})", PEMS) from error
    try:
        if client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(client_ca)
    except OSError as error:
        raise InvalidRequest("tls_client_ca", f"{client_ca} ({error})", PEMS) from error
    return context


def read_pems(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    tls_context(cert, key, client_ca)  # checks the files, since gRPC would not name the option
    pair = key.read_bytes(), cert.read_bytes()
    authorities = None if client_ca is None else client_ca.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], authorities)
