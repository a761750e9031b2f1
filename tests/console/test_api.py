import asyncio
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from logitsieve.api.errors import DeadlineExceeded, ModelNotFound, Overloaded, Unavailable
from logitsieve.console.api import AT_ONCE, MOST_JSON, MOST_WAITING, Api, Desk
from logitsieve.decoding import LocalDecoder
from logitsieve.server.models.routes import Routes
from logitsieve.server.precision import NICE
from tests.console.conftest import KEPT
from tests.server.running import WAIT_S
from tests.synthetic import make_hidden


def let_in(time_left_s: float | None) -> None:
    pass


def test_work_runs_at_a_lower_priority_and_under_a_lease(routes: Routes) -> None:
    desk = Desk(lambda: routes, let_in)

    def work(decoder: LocalDecoder) -> tuple[str, int]:
        return decoder.version, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert asyncio.run(desk.run(work, "demo@2")) == ("2", NICE)
    with pytest.raises(ModelNotFound):
        asyncio.run(desk.run(work, "unknown"))
    desk.close()
    with pytest.raises(Unavailable):
        asyncio.run(desk.run(work, "demo@2"))


async def filled(routes: Routes) -> tuple[Desk, list[asyncio.Task[None]], threading.Event]:
    """A desk with as many questions as it takes, and the event that those at work wait for."""
    entered, leaving = threading.Semaphore(0), threading.Event()

    def work(decoder: LocalDecoder) -> None:
        entered.release()
        assert leaving.wait(WAIT_S)

    desk = Desk(lambda: routes, let_in)
    asked = [asyncio.create_task(desk.run(work, "demo")) for _ in range(MOST_WAITING)]
    for _ in range(AT_ONCE):
        await asyncio.to_thread(entered.acquire, timeout=WAIT_S)
    assert not entered.acquire(blocking=False)
    return desk, asked, leaving


async def test_two_at_once_and_no_more_than_a_few_waiting(routes: Routes) -> None:
    desk, asked, leaving = await filled(routes)
    with pytest.raises(Overloaded):
        await desk.run(lambda decoder: None, "demo")
    leaving.set()
    assert await asyncio.gather(*asked) == [None] * MOST_WAITING
    desk.close()


async def test_questions_that_wait_at_the_end_are_told_of_it(routes: Routes) -> None:
    desk, asked, leaving = await filled(routes)
    closing = asyncio.create_task(asyncio.to_thread(desk.close))
    told = await asyncio.gather(*asked[AT_ONCE:], return_exceptions=True)
    leaving.set()
    assert [str(each) for each in told] == ["the server is stopping"] * (MOST_WAITING - AT_ONCE)
    assert await asyncio.gather(*asked[:AT_ONCE], closing) == [None] * (AT_ONCE + 1)


async def test_what_a_server_refuses_and_what_takes_too_long(routes: Routes) -> None:
    def refuse(time_left_s: float | None) -> None:
        raise Overloaded("too much is in flight", 0.1)

    desk, leaving = Desk(lambda: routes, refuse), threading.Event()
    with pytest.raises(Overloaded):
        await desk.run(lambda decoder: None, "demo")
    desk.close()
    desk = Desk(lambda: routes, let_in, answer_s=0.01)
    with pytest.raises(DeadlineExceeded):
        await desk.run(lambda decoder: leaving.wait(WAIT_S), "demo")
    leaving.set()
    await asyncio.to_thread(desk.close)


DOCS = Path(__file__).parents[2] / "docs" / "console.md"

GETS = {"overview": "", "points": "?model=demo", "chosen": "?model=demo&min_precision=0.9&k=5"}
POSTS: dict[str, Any] = {
    "top": {"model": "demo", "kept": 1, "k": 3, "head": "screen"},
    "draws": {"model": "demo", "kept": 1, "samples": 3},
    "why-not": {"model": "demo", "kept": 1, "word": "word20"},
}


def test_what_is_read_and_what_is_asked_with_a_context(port: TestClient) -> None:
    for name, query in GETS.items():
        reply = port.get(f"/api/{name}{query}")
        assert reply.status_code == 200, reply.text
        assert isinstance(reply.json(), dict)
    for name, question in POSTS.items():
        reply = port.post(f"/api/{name}", json=question)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == "demo@2"  # the highest


def test_a_row_the_pages_example_and_many_words_are_asked_with(port: TestClient) -> None:
    row = make_hidden(1)[0].tolist()
    answer = port.post("/api/top", json={"model": "demo", "row": row, "k": 1})
    assert answer.status_code == 200
    [example] = re.findall(r"-d '(.*)'", DOCS.read_text("utf-8"))
    question = json.loads(example) | {"model": "demo"}
    assert len(port.post("/api/top", json=question).json()["words"]) == question["k"]
    # Each was searched in the whole vocabulary: seconds, at 100,000 words of either.
    reply = port.post("/api/top", json={**POSTS["top"], "banned": ["word299"] * 50_000})
    assert reply.status_code == 200


def test_every_endpoint_is_documented_and_tested() -> None:
    never: Any = None
    api = Api(never, never)
    routes = {(route.path.removeprefix("/api/"), *(route.methods or ())) for route in api.routes()}
    names = {name for name, *_ in routes}
    assert names == GETS.keys() | POSTS.keys()
    documented = re.findall(r"^\| `(GET|POST) /api/([\w-]+)", DOCS.read_text("utf-8"), re.M)
    assert {name for _, name in documented} == names
    assert all(
        {*of} >= {name, method} for method, name in documented for of in routes if name in of
    )


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
FIELDS = (
    *("model", "kept", "row", "k", "head", "knobs", "min_precision", "banned", "allowed"),
    *("word", "samples", "seed", "temperature", "top_k", "top_p", "min_p"),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(POSTS)), field=st.sampled_from(FIELDS), value=VALUES)
def test_no_question_is_a_defect(port: TestClient, name: str, field: str, value: Any) -> None:
    body = json.dumps({**POSTS[name], field: value})
    reply = port.post(f"/api/{name}", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (200, 400, 404), reply.text


@pytest.mark.parametrize("name", POSTS)
def test_no_huge_number_is_a_defect(port: TestClient, name: str) -> None:
    for field in FIELDS:
        for value in (10**400, -(10**400), [10**400] * 24, {"probes": 10**400}):
            reply = port.post(f"/api/{name}", json={**POSTS[name], field: value})
            assert reply.status_code in (200, 400), (field, reply.text)


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("points?model=unknown", 404, "model"),
        ("points", 400, "model"),  # several could be meant
        ("chosen?model=demo&k=six", 400, "k"),
        ("chosen?model=demo&min_precision=none", 400, "min_precision"),
    ],
)
def test_bad_queries(port: TestClient, path: str, status: int, field: str) -> None:
    reply = port.get(f"/api/{path}")
    assert reply.status_code == status
    assert reply.json()["error"]["field"] == field


NAN = float("nan")
# What names a field is wrong for, by endpoint.
BAD: dict[str, dict[str, list[Any]]] = {
    "top": {
        "model": [5],
        "kept": [KEPT, True, None],
        "row": [[1.0], [NAN], [None] * 24, [NAN] * 24, [1e300] * 24],
        "k": [0, "5"],
        "head": [5],
        "banned": ["word9"],
    },
    "draws": {"samples": [0], "seed": [-1], "temperature": ["hot"], "top_k": [1.5]},
    "why-not": {"word": ["unknown", 300, -1, True, None, 1.5]},
}
QUESTIONS = [
    *(("top", body, "body") for body in (b"", b"[]", b"{" * 100_000, b"\xff\xfe")),
    ("top", {"head": "screen", "knobs": {"probes": "1"}}, "knobs"),
    *(
        (name, {field: value}, field)
        for name, fields in BAD.items()
        for field, values in fields.items()
        for value in values
    ),
]


@pytest.mark.parametrize(("name", "asked", "field"), QUESTIONS)
def test_bad_questions(port: TestClient, name: str, asked: Any, field: str) -> None:
    body = asked if isinstance(asked, bytes) else json.dumps(POSTS[name] | asked)
    reply = port.post(f"/api/{name}", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["field"] == field


KINDS = ("Application/Json", "application/json ;charset=utf-8", "APPLICATION/JSON;charset=UTF-8")


@pytest.mark.parametrize("kind", KINDS)
def test_a_media_type_has_any_case_and_parameters(port: TestClient, kind: str) -> None:
    headers = {"Content-Type": kind}
    assert (
        port.post("/api/top", content=json.dumps(POSTS["top"]), headers=headers).status_code == 200
    )
    for other in ("text/plain", "", "application/jsonp", "application/json, text/plain"):
        reply = port.post("/api/top", content=b"{}", headers={"Content-Type": other})
        assert reply.json()["error"]["field"] == "content-type"


def test_huge_questions_are_refused_as_announced_and_as_they_come(port: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    longer = {**headers, "Content-Length": str(MOST_JSON + 1)}
    announced = port.post("/api/top", content=b"", headers=longer)
    chunks = (b" " * (1 << 16) for _ in range((MOST_JSON >> 16) + 1))
    came = port.post("/api/top", content=chunks, headers=headers)
    assert announced.status_code == came.status_code == 413
    form = port.post("/api/top", content=b"{}", headers={"Content-Type": "text/plain"})
    assert form.json()["error"]["field"] == "content-type"  # of another site
