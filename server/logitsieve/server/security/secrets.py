"""Certificates and bearer tokens from files, which are read again when they have changed.

One token a line, `scope:token`; empty lines and lines that begin with `#` are skipped. Only LF and
CRLF end a line, so comments may be in any encoding that contains ASCII. The scopes are `read`,
which answers requests, `console`, which shows the console, and `admin`, which changes what is
served and may do all that the others may.
Only hashes are kept, and all of them are compared, each in constant time.

Certificates are checked when a client connects; open connections keep the one they began with.
A file that cannot be used is logged, and the last good one stays.
"""

from __future__ import annotations

import hmac
import logging
import re
import ssl
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

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
# RFC 6750's b64token, long enough not to be guessed.
TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")
LINE = "scope:token: read, console or admin; 16 or more of A-Z a-z 0-9 . _ ~ + / -"
PEMS = "PEM files: a certificate chain with its unencrypted key, authorities of clients"

# Written by the group, or anything by others. A group may read: that is how secrets are mounted.
EXPOSED = 0o027

Granted = list[tuple[bytes, frozenset[str]]]  # (SHA-256 of a token, the scopes that it has)


class ReloadingFile(Generic[T]):
    """The value that `read()` returned when the files were last good; the first file is the secret.

    InvalidRequest names the option where they are not good at the start. No clock: `renew` compares
    the files' stats, so it is called when the value is needed.
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
        """Read changed files again; whether that succeeded. A failure is logged once, and the last
        good value stays: a file may be half written.
        """
        try:
            stamp = self._stats()
            if stamp == self._stamp:
                return False
            value = self._read()
            # Of two files that belong together only one may have been replaced by now.
            if self._stats() != stamp:
                return False
        except (OSError, InvalidRequest) as error:
            self._complain(str(error))
            return False
        self._stamp, self.value, self._complaint = stamp, value, ""
        event(log, logging.INFO, "renewed", f"{self._option}: renewed", option=self._option)
        self._warn_if_exposed()
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


class Tokens:
    def __init__(self, path: Path) -> None:
        self._file = ReloadingFile("tokens", lambda: read_tokens(path), "a file of tokens", path)

    def check(self, header: str, scope: str) -> None:
        """Raise Unauthenticated unless `header` is "Bearer <token>" with a token of the file, and
        PermissionDenied if that lacks the scope.
        """
        self._file.renew()
        kind, _, token = header.partition(" ")
        digest = sha256(token.strip().encode()).digest()
        matching = [
            scopes for granted, scopes in self._file.value if hmac.compare_digest(granted, digest)
        ]
        if kind.lower() != "bearer" or not matching:
            raise Unauthenticated(f"{HEADER}: no token of this server", HEADER)
        if not any(scope in scopes for scopes in matching):
            raise PermissionDenied(f"{HEADER}: this takes a token of scope {scope}", HEADER)


def read_tokens(path: Path) -> Granted:
    """At least one token; InvalidRequest names the line at fault, but not what it holds."""
    granted: Granted = []
    # str.splitlines would also split at U+0085 and U+001C, so inside letters of a UTF-8 comment.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip() or line.startswith(b"#"):
            continue
        scope, _, token = (part.strip() for part in line.partition(b":"))
        if scope not in SCOPES or not TOKEN.fullmatch(token):
            raise InvalidRequest("tokens", f"something else at {path}:{number}", LINE)
        granted.append((sha256(token).digest(), SCOPES[scope]))
    if not granted:
        raise InvalidRequest("tokens", f"none in {path}", LINE)
    return granted


class Certificates:
    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._require_clients = client_ca is not None
        files = (key, cert) if client_ca is None else (key, cert, client_ca)
        self._pems = ReloadingFile(
            "tls_cert", lambda: read_pems(cert, key, client_ca), PEMS, *files
        )

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for one `add_secure_port`: gRPC binds no second port by the same."""
        current = self._pems.value

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """A configuration newer than this port's; gRPC calls it when a client connects."""
            nonlocal current
            self._pems.renew()
            if self._pems.value is current:
                return None
            current = self._pems.value
            return current

        return grpc.dynamic_ssl_server_credentials(
            current, renewed, require_client_authentication=self._require_clients
        )


def certificates(config: ServeConfig) -> Certificates | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Certificates(config.tls_cert, config.tls_key, config.tls_client_ca)


def http_tls(config: ServeConfig) -> ssl.SSLContext | None:
    """TLS for the HTTP port, None without a certificate; new connections get changed files."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    cert, key = config.tls_cert, config.tls_key

    def read() -> ssl.SSLContext:
        read_pems(cert, key, None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password="")
        return context

    pems = ReloadingFile("tls_cert", read, PEMS, key, cert)

    def renewed(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        pems.renew()
        connection.context = pems.value

    first = pems.value
    first.sni_callback = renewed
    return first


def read_pems(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    """The files as gRPC takes them; InvalidRequest names the option whose file is not good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password keeps OpenSSL from asking for one at the terminal; it opens no key.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:  # an SSLError too
        raise InvalidRequest("tls_cert", f"{cert}, {key} ({error})", PEMS) from error
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except OSError as error:
        raise InvalidRequest("tls_client_ca", f"{client_ca} ({error})", PEMS) from error
    pair = key.read_bytes(), cert.read_bytes()
    authorities = None if client_ca is None else client_ca.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], authorities)
