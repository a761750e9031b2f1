"""The HTTP port without a console, and the console that the server finds."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from logitsieve.api.errors import MissingExtra
from logitsieve.server.config import ServeConfig
from logitsieve.server.http.application import ServerView, application, open_console
from logitsieve.server.models.routes import Routes
from tests.server.conftest import Serve


def test_a_server_without_a_console_that_is_not_ready() -> None:
    client = TestClient(application(lambda: b"series 1\n", lambda: False))
    reply = client.get("/metrics")
    assert reply.text == "series 1\n"
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert (client.get("/healthz").status_code, client.get("/healthz").text) == (200, "alive\n")
    assert (client.get("/readyz").status_code, client.get("/readyz").text) == (503, "not ready\n")
    assert client.get("/").status_code == client.get("/api/overview").status_code == 404


def test_a_scrape_that_fails_is_an_incident(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bytes:
        raise ZeroDivisionError("a secret")

    client = TestClient(application(fail, lambda: True), raise_server_exceptions=False)
    reply = client.get("/metrics")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.text.rpartition(" ")[2].strip() in caplog.text


def view_of(console: bool | None) -> ServerView:
    return ServerView(
        config=ServeConfig(console=console),
        routes=Routes,
        admit=lambda time_left_s: None,
        registry=CollectorRegistry(),
        ready=lambda: False,
        api_keys=None,
        secure=False,
    )


def test_an_entry_point_names_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (True, None):
        console = open_console(view_of(asked))
        assert console is not None
        assert type(console).__module__.startswith("logitsieve.console.")
        console.close()
    assert open_console(view_of(False)) is None
    # An old installation declares none.
    metadata = tmp_path / "logitsieve-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: logitsieve\nVersion: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_console(view_of(None)) is None
    with pytest.raises(MissingExtra, match=r"logitsieve\[console\]"):
        open_console(view_of(True))


def test_no_extra_means_no_console(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    found = "logitsieve.utils.environment.find_spec"
    monkeypatch.setattr(found, lambda name: None if name == "jinja2" else object())
    with pytest.raises(MissingExtra, match=r"jinja2 is not installed: .*'logitsieve\[console\] @"):
        open_console(view_of(True))
    with serve() as run:
        assert run.server.console is None
        assert run.server.http_scheme == "http"
