from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from logitsieve.console import app
from logitsieve.console.app import COOKIE, HEADERS, PAGES
from logitsieve.server.models.routes import Routes
from logitsieve.server.security import ApiKeys
from tests.console.conftest import shown
from tests.server.materials import write_api_keys


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


SHOWN, READING, ADMIN = "console-token-0123", "reading-token-0123", "Zr8w-Lk3p.Yd6n_+/~=="


@pytest.fixture
def guarded(tmp_path: Path, routes: Routes) -> Iterator[TestClient]:
    api_keys = write_api_keys(tmp_path, f"console:{SHOWN}\nread:{READING}\nadmin:{ADMIN}\n")
    with shown(lambda: routes, ApiKeys(api_keys), secure=True) as app:
        yield TestClient(app, "https://decoder.example", follow_redirects=False)


def test_who_brings_no_token_sees_the_sign_in_page_alone(guarded: TestClient) -> None:
    for path in ("/", "/playground", "/none"):
        reply = guarded.get(path)
        assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")
    assert guarded.get("/api/overview").status_code == 401
    assert guarded.get("/sign-in").status_code == 200
    assert guarded.get("/static/console.css").status_code == 200
    assert guarded.get("/metrics").text == "series 1\n"  # as without a console
    headers = {"Authorization": f"Bearer {SHOWN}"}
    assert guarded.get("/api/overview", headers=headers).status_code == 200
    headers = {"Authorization": f"Bearer {READING}"}
    assert guarded.get("/api/overview", headers=headers).status_code == 403
    assert guarded.post("/sign-in", data={"key": "x" * 10_000}).status_code == 413


@pytest.mark.parametrize("key", [SHOWN, ADMIN])
def test_a_key_becomes_a_cookie_of_this_site(guarded: TestClient, key: str) -> None:
    reply = guarded.post("/sign-in", data={"key": f" {key} "})
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith(f"__Host-{COOKIE}=")
    assert key not in cookie
    parts = ("httponly", "samesite=strict", "secure", "path=/")
    assert all(part in cookie.lower() for part in parts)
    assert guarded.get("/playground").status_code == 200
    assert guarded.get("/api/overview").status_code == 200
    kept = dict(guarded.cookies)
    left = guarded.post("/sign-out")
    assert f'{COOKIE}=""' in left.headers["set-cookie"]
    assert guarded.get("/").status_code == 303
    guarded.cookies.update(kept)  # the session is over, not forgotten by the browser alone
    assert guarded.get("/").status_code == 303


def test_old_sessions_make_room(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_SESSIONS", 2)
    sessions = []
    for _ in range(3):
        guarded.cookies.clear()
        guarded.post("/sign-in", data={"key": SHOWN})
        sessions.append(dict(guarded.cookies))
    for cookies, status in zip(sessions, (401, 200, 200), strict=True):
        guarded.cookies.clear()
        guarded.cookies.update(cookies)
        assert guarded.get("/api/overview").status_code == status


@pytest.mark.parametrize(("key", "text"), [("wrong", "no API key"), (READING, "scope"), ("", "no")])
def test_other_keys_stay_outside(guarded: TestClient, key: str, text: str) -> None:
    reply = guarded.post("/sign-in", data={"key": key})
    assert reply.status_code == 403
    assert text in reply.text
    assert "set-cookie" not in reply.headers
    assert key not in reply.text or not key


@pytest.mark.parametrize("host", ["x/static/?", "x/sign-in#", "x/sign-in?a=", "@x/static/"])
def test_a_host_that_looks_like_an_open_path_opens_nothing(guarded: TestClient, host: str) -> None:
    assert guarded.get("/api/overview", headers={"Host": host}).status_code == 401
    assert guarded.get("/playground", headers={"Host": host}).status_code == 303


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[(host, 200) for host in ("localhost:8080", "127.0.0.1", "[::1]:8080")],
        *[(host, 403) for host in ("attacker.example", "localhost.attacker.example:8080", "")],
    ],
)
def test_names_of_loopback_alone_are_answered(port: TestClient, host: str, status: int) -> None:
    for path in ("/", "/api/overview", "/metrics", "/healthz"):
        assert port.get(path, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
    ],
)
def test_another_sites_page_lets_no_browser_compute(
    port: TestClient, guarded: TestClient, headers: dict[str, str]
) -> None:
    path = "/api/points?model=demo"
    assert port.get(path, headers=headers).json()["error"]["field"] == "origin"
    assert port.get("/", headers=headers).status_code == 200  # a link
    bearing = headers | {"Authorization": f"Bearer {SHOWN}"}
    assert guarded.get(path, headers=bearing).status_code == 403


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, {}]
)
def test_its_own_pages_ask(port: TestClient, headers: dict[str, str]) -> None:
    assert port.get("/api/overview", headers=headers).status_code == 200
    reply = port.get("/sign-in", headers=headers, follow_redirects=False)  # none is needed
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
