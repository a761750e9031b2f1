"""TLS of the gRPC ports: certificates from files that may be replaced while the server runs.

The files are looked at when a client connects. A pair that cannot be used is logged, and the last
good one stays; connections that are open keep the certificate they began with.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.config import ServeConfig
from logitsieve.server.security.reloading_file import ReloadingFile

FITTING = "PEM files: a certificate chain with its unencrypted key, authorities of clients"


class Certificates:
    """The files of TLS. InvalidRequest where they are not good at the start."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._clients_show_theirs = client_ca is not None
        beside = (cert,) if client_ca is None else (cert, client_ca)
        try:
            self._pems = ReloadingFile(
                "tls_cert", lambda: read_pems(cert, key, client_ca), key, beside
            )
        except OSError as error:
            raise InvalidRequest("tls_cert", error, FITTING) from error

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port` of one port: gRPC binds no second one by the same."""
        known = self._pems.held

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """What is new since this port was told; called by gRPC when a client connects."""
            nonlocal known
            self._pems.renew()
            if self._pems.held is known:
                return None
            known = self._pems.held
            return known

        return grpc.dynamic_ssl_server_credentials(
            known, renewed, require_client_authentication=self._clients_show_theirs
        )


def certificates(config: ServeConfig) -> Certificates | None:
    """Those that the options name; None without `tls_cert`."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Certificates(config.tls_cert, config.tls_key, config.tls_client_ca)


def read_pems(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    """The files as gRPC takes them; InvalidRequest names the option whose file is not good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password keeps OpenSSL from asking for one at the terminal; it opens no key.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:  # an SSLError too
        raise InvalidRequest("tls_cert", f"{cert}, {key} ({error})", FITTING) from error
    if client_ca is None:
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), cert.read_bytes())])
    try:
        context.load_verify_locations(client_ca)
    except OSError as error:
        raise InvalidRequest("tls_client_ca", f"{client_ca} ({error})", FITTING) from error
    pair = (key.read_bytes(), cert.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], client_ca.read_bytes())
