import pytest
from starlette.testclient import TestClient

from logitsieve.console.app import HEADERS, PAGES
from logitsieve.server.models.routes import Routes
from tests.console.conftest import shown


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), "/static/console.css", "/none"])
def test_every_reply_forbids_other_hosts_and_inline_scripts(port: TestClient, path: str) -> None:
    reply = port.get(path)
    assert reply.status_code == (404 if path == "/none" else 200)
    assert HEADERS.items() <= {name.title(): text for name, text in reply.headers.items()}.items()
    assert "unsafe" not in reply.headers["content-security-policy"]


def test_an_unknown_path_a_wrong_method_and_a_file_sent_once(port: TestClient) -> None:
    assert port.get("/static/../app.py").status_code == 404
    assert port.get("/static/none.js").status_code == 404
    assert port.get("/static").status_code == port.get("/static/uplot").status_code == 404
    assert port.get("/api/none").json()["error"]["status"] == 404
    assert port.post("/api/overview").json()["error"]["status"] == 405
    assert port.post("/metrics").status_code == 405
    assert port.delete("/playground").status_code == 405
    first = port.get("/static/console.js")
    again = port.get("/static/console.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-cache"
    assert port.get("/").headers["cache-control"] == "no-store"


def test_a_defect_is_an_incident() -> None:
    def fail() -> Routes:
        raise ZeroDivisionError("a secret")

    with shown(fail) as app:
        reply = TestClient(app, "http://localhost").get("/api/overview")
    assert reply.status_code == 500
    assert "incident" in reply.text
    assert "secret" not in reply.text
