"""deploy/image/probe.py, as the image's health check calls it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.deploy.dockerfile import REPOSITORY

PROBE = REPOSITORY / "deploy" / "image" / "probe.py"


class Pages(BaseHTTPRequestHandler):
    """/healthz is 200, anything else 503."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def probe(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROBE), url]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_succeeds_where_the_page_is_200(address: str) -> None:
    done = probe(f"{address}/healthz")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_proxy_is_asked(address: str) -> None:
    assert probe(f"{address}/healthz", http_proxy="http://127.0.0.1:1").returncode == 0


@pytest.mark.parametrize("url", ["{}/readyz", "http://127.0.0.1:1/healthz"])
def test_it_fails_where_it_is_not_or_nobody_listens(address: str, url: str) -> None:
    done = probe(url.format(address))
    assert (done.returncode, done.stderr) == (1, "")
