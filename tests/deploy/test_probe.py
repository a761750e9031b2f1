"""deploy/image/probe.py, as the image's health check calls it."""

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.deploy.dockerfile import REPOSITORY
from tests.server.materials import authority, signed_by

PROBE = REPOSITORY / "deploy" / "image" / "probe.py"


class Pages(BaseHTTPRequestHandler):
    """/healthz is 200, anything else 503."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Quiet(HTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that speaks no TLS."""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    with Quiet(("127.0.0.1", 0), Pages) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def probe(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROBE), url]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_succeeds_where_the_page_is_200_and_asks_no_proxy() -> None:
    with serving() as port:
        address = f"http://127.0.0.1:{port}"
        done = probe(f"{address}/healthz", http_proxy="http://127.0.0.1:1")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        # A port of the environment goes first.
        done = probe("http://127.0.0.1:1/healthz", LOGITSIEVE_SERVE_HTTP_PORT=str(port))
        assert done.returncode == 0
        for url in (f"{address}/readyz", "http://127.0.0.1:1/healthz"):
            done = probe(url)
            assert (done.returncode, done.stderr) == (1, "")


def test_it_succeeds_over_tls_too(tmp_path: Path) -> None:
    pair = signed_by(authority())
    (tmp_path / "pair").write_bytes(pair.key_pem + pair.cert_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair")
    with serving(context) as port:
        assert probe(f"http://127.0.0.1:{port}/healthz").returncode == 0
        assert probe(f"http://127.0.0.1:{port}/readyz").returncode == 1
