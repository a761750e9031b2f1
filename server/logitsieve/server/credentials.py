"""TLS of the gRPC ports: certificates from files that may be replaced while the server runs.

The files are looked at when a client connects. A pair that cannot be used is logged, and the last
good one stays; connections that are open keep the certificate they began with.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from logitsieve.server.config import ServeConfig
from logitsieve.server.watched import Watched
from logitsieve.types.errors import InvalidRequest

FITTING = "PEM files: a certificate chain with its unencrypted key, authorities of clients"


def server_credentials(config: ServeConfig) -> grpc.ServerCredentials | None:
    """For `add_secure_port`; None without `tls_cert`. InvalidRequest if the files are not good."""
    cert, key, client_ca = config.tls_cert, config.tls_key, config.tls_client_ca
    if cert is None or key is None:
        return None
    beside = (cert,) if client_ca is None else (cert, client_ca)
    try:
        pems = Watched("tls_cert", lambda: read_pems(cert, key, client_ca), key, beside)
    except OSError as error:
        raise InvalidRequest("tls_cert", error, FITTING) from error

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        return pems.held if pems.renew() else None  # called by gRPC when a client connects

    return grpc.dynamic_ssl_server_credentials(
        pems.held, renewed, require_client_authentication=client_ca is not None
    )


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
