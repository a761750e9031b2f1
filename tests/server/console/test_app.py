from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from logitsieve.server.config import ServeConfig
from logitsieve.server.console.access import ConsoleAccess
from logitsieve.server.console.api import Api
from logitsieve.server.console.app import application, console
from logitsieve.server.console.desk import Desk
from logitsieve.server.console.pages import HEADERS, PAGES
from logitsieve.server.models.routes import Routes


def test_a_scrape_has_the_type_of_prometheus(port: TestClient) -> None:
    reply = port.get("/metrics")
    assert reply.text == "series 1\n"
    assert reply.headers["content-type"].startswith("text/plain; version=")


def test_alive_but_not_ready(port: TestClient) -> None:
    assert (port.get("/healthz").status_code, port.get("/healthz").text) == (200, "alive\n")
    assert (port.get("/readyz").status_code, port.get("/readyz").text) == (503, "not ready\n")


def test_a_scrape_that_fails_is_an_incident(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bytes:
        raise ZeroDivisionError("a secret")

    client = TestClient(application(fail, lambda: True), raise_server_exceptions=False)
    reply = client.get("/metrics")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.text.rpartition(" ")[2].strip() in caplog.text


def test_no_console_without_one() -> None:
    client = TestClient(application(lambda: b"", lambda: True))
    assert client.get("/").status_code == client.get("/api/overview").status_code == 404


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), "/static/console.css", "/none"])
def test_every_reply_forbids_other_hosts_and_inline_scripts(port: TestClient, path: str) -> None:
    reply = port.get(path)
    assert reply.status_code == (404 if path == "/none" else 200)
    assert HEADERS.items() <= {name.title(): text for name, text in reply.headers.items()}.items()
    assert "unsafe" not in reply.headers["content-security-policy"]


def test_a_path_that_is_unknown_and_a_method_that_is_not_allowed(port: TestClient) -> None:
    assert port.get("/static/../app.py").status_code == 404
    assert port.get("/static/none.js").status_code == 404
    assert port.get("/static").status_code == port.get("/static/uplot").status_code == 404
    assert port.get("/api/none").json()["error"]["status"] == 404
    assert port.post("/api/overview").json()["error"]["status"] == 405
    assert port.post("/metrics").status_code == 405
    assert port.delete("/playground").status_code == 405


def test_a_file_is_sent_once(port: TestClient) -> None:
    first = port.get("/static/console.js")
    again = port.get("/static/console.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-cache"
    assert port.get("/").headers["cache-control"] == "no-store"


def test_a_defect_is_an_incident() -> None:
    def fail() -> Routes:
        raise ZeroDivisionError("a secret")

    desk = Desk(fail)
    api = Api(desk, ServeConfig(), registry=CollectorRegistry(), ready=lambda: True)
    shown = console(api, ConsoleAccess(None, secure=False))
    client = TestClient(application(lambda: b"", lambda: True, shown), "http://localhost")
    reply = client.get("/api/overview")
    assert reply.status_code == 500
    assert "incident" in reply.text
    assert "secret" not in reply.text
    desk.close()
