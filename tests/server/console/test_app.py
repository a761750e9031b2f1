from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from logitsieve.server.console.app import application


@pytest.fixture
def port() -> TestClient:
    return TestClient(application(lambda: b"series 1\n", lambda: False))


def test_a_scrape_has_the_type_of_prometheus(port: TestClient) -> None:
    reply = port.get("/metrics")
    assert reply.text == "series 1\n"
    assert reply.headers["content-type"].startswith("text/plain; version=")


def test_alive_but_not_ready(port: TestClient) -> None:
    assert (port.get("/healthz").status_code, port.get("/healthz").text) == (200, "alive\n")
    assert (port.get("/readyz").status_code, port.get("/readyz").text) == (503, "not ready\n")
