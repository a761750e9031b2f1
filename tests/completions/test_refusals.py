"""Bad input, limits and closed clients: OpenAI's error object, and no harm to other requests."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from logitsieve.api.errors import InvalidRequest, ModelNotFound, Unavailable
from logitsieve.client.llamacpp import LlamaAttachment
from logitsieve.completions import CompletionsConfig, fields
from logitsieve.completions.decode_loop import DecodeLoop
from logitsieve.completions.failures import error_object
from tests.completions.conftest import NAME, Client, serving
from tests.server.running import Loop

pytestmark = pytest.mark.usefixtures("llama_wheel")

P = "the"
VALUES: dict[str, list[Any]] = {
    "prompt": [7, [], [["the"], [1]], [True], [1, 560], [5] * 300, "the " * 4000, "\ud800"],
    "max_tokens": [0, -1, "5"],
    "temperature": [-1, 1e-9, True, 10**400],
    "top_p": [1.1],
    "top_k": [0.5],
    "min_p": ["0"],
    "seed": [1 << 64],
    "n": [1000],
    "best_of": [3],
    "stop": [["a"] * 1_000_000, [""], [5], ["x" * 10_000]],
    "logprobs": [1000, True],
    "logit_bias": [{"560": 1}, {"-1": 1}, {"05": 1}, {"5\n": 1}],
    "echo": [1],
    "stream": ["yes"],
    "stream_options": [{"other": 1}],
    "suffix": ["end"],
    "response_format": [{"type": "xml"}, 5],
}
BAD: list[tuple[dict[str, Any], str]] = [
    *(({"prompt": P, name: value}, name) for name, values in VALUES.items() for value in values),
    ({}, "prompt"),
    ({"prompt": P, "max_tokens": 256}, "prompt"),
    ({"prompt": P, "logit_bias": {"5": "much"}}, "logit_bias.5"),
    ({"prompt": P, "presence_penalty": None, "frequency_penalty": []}, "frequency_penalty"),
]
USER = {"role": "user", "content": "go"}
CHATS: dict[str, dict[str, Any]] = {
    "messages": {},
    "messages ": {"messages": "hello"},
    "messages  ": {"messages": [{"role": "user", "content": "\ud800"}]},
    "messages[0]": {"messages": ["hello"]},
    "messages[0].role": {"messages": [{"content": "hello"}]},
    "messages[0].content": {"messages": [{"role": "user", "content": 5}]},
    "messages[0].content[0]": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "top_logprobs": {"messages": [{"role": "user", "content": "go"}], "top_logprobs": 2},
    "tools": {"messages": [{"role": "user", "content": "go"}], "tools": []},
}


@pytest.mark.parametrize(("body", "field"), BAD)
def test_a_wrong_field_is_named(client: Client, body: dict[str, Any], field: str) -> None:
    error = client.refused("/v1/completions", body)
    assert (error["status"], error["type"]) == (400, "invalid_request_error")
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: got ")


WILD: list[Any] = [
    *("x" * 100_000, "\ud800" * 999, "\n" * 999, 10**4000, -1, 1e308, True, {"a" * 999: None}),
    *([[["é" * 9999]]], [10**4000], ["x" * 999, 5], [{"x" * 999: 1}], {"x" * 999: "y" * 999}),
    *({"5": "y" * 999}, [{"role": "x" * 999, "content": ["y" * 999]}], [{"role": ["x" * 999]}]),
    [{"role": "user", "content": [{"type": "text", "x" * 999: 1}], "y" * 999: 1}],
    [{"role": "user", "content": [{"type": "text", "text": 10**4000}]}],
    [{"role": "user", "content": "\ud800" * 999, "name": "x"}],
    *({"include_usage": "x" * 999}, [{"role": "user", "content": "go " * 9999}]),
    *("\U0001f600" * 9999, [{"role": "user", "content": "\U0001f600" * 9999}]),
]


def test_no_refusal_is_longer_than_300_characters(attached: LlamaAttachment) -> None:
    readers = (fields.completion, {"prompt": P}), (fields.chat, {"messages": [USER]})
    refused = 0
    for read, good in readers:
        for name in [*fields.COMPLETION, *fields.CHAT, *fields.TOKENIZE, "tools", "x" * 999]:
            for value in WILD:
                try:
                    read({**good, name: value}, attached.context, NAME)
                except (InvalidRequest, ModelNotFound) as error:
                    refused += 1
                    message = error_object(error)[1]["error"]["message"]
                    assert len(message) <= 300
                    assert message.startswith(name[:20])
    assert refused > 1000


@pytest.mark.parametrize("name", CHATS)
def test_a_wrong_field_of_a_chat_is_named(client: Client, name: str) -> None:
    assert client.refused("/v1/chat/completions", CHATS[name])["param"] == name.strip()


def test_bodies_that_are_no_json_objects(client: Client) -> None:
    for body in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000):
        error = client.refused("/v1/completions", body)
        assert (error["status"], error["param"]) == (400, "body")
    status, error = client.post("/v1/completions", b"{}", **{"Content-Type": "text/plain"})
    assert (status, error["error"]["param"]) == (400, "content-type")
    assert client.get("/v1/completions")[0] == 405
    assert client.get("/other")[0] == client.get("/v1/models/")[0] == 404
    assert client.post("/v1/completions/", b"{}")[0] == 404  # no way to a host of the engine's own
    assert client.refused("/detokenize", {"tokens": [560]})["param"] == "tokens"
    assert client.refused("/tokenize", {})["param"] == "prompt"
    assert client.refused("/tokenize", {"prompt": "\ud800"})["param"] == "prompt"
    assert client.completion(prompt=P, max_tokens=1, stop=None, logprobs=None)["choices"]


def test_a_full_queue_an_end_and_too_long_a_wait(loop: Loop, attached: LlamaAttachment) -> None:
    with serving(loop, attached, waiting=2, started=False) as (client, engine):
        error = client.refused("/v1/completions", {"prompt": ["the"] * 1024, "n": 128})
        assert (error["status"], error["param"]) == (400, "n")
        engine.submit([Mock(), Mock()])
        error = client.refused("/v1/completions", {"prompt": "the"})
        assert (error["status"], error["type"]) == (429, "rate_limit_error")
        engine.drain()
        error = client.refused("/v1/completions", {"prompt": "the"})
        assert (error["status"], error["type"]) == (503, "server_error")
    with serving(loop, attached, timeout_s=0.0) as (client, engine):
        assert client.refused("/v1/completions", {"prompt": "the"})["status"] == 504
        assert ended(engine)
    with pytest.raises(Unavailable):  # it is closed
        engine.submit([])


def ended(engine: DecodeLoop) -> bool:
    return not (engine.running or engine.waiting)


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_client_ends_its_task(loop: Loop, attached: LlamaAttachment, stream: bool) -> None:
    with serving(loop, attached, started=False) as (client, engine):
        asked = {"prompt": "the", "max_tokens": 200, "temperature": 0, "stream": stream}
        body = json.dumps(asked).encode()
        host, port = client.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json"
            connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: bool(engine.waiting))
            [task] = engine.waiting
            engine.turn()
            engine.turn()
            assert engine.running == [task]
        wait_until(lambda: task.cancelled)
        engine.turn()
        assert ended(engine)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does; the test's own timeout ends it."""
    while not condition():
        socket.socket().close()


def test_a_failure_ends_its_own_request_alone(loop: Loop, attached: LlamaAttachment) -> None:
    class Broken:
        headless = True

        def choose(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("a defect")

        def scores(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("a defect")

    good = attached.head
    with serving(loop, attached) as (client, engine):
        attached.head = Broken()
        try:
            error = client.refused("/v1/completions", {"prompt": "the"})
            assert (error["status"], error["type"]) == (500, "server_error")
            assert "defect" not in error["message"]
        finally:
            attached.head = good
        assert client.completion(prompt="the", max_tokens=2)["choices"]
        assert ended(engine)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"port": 70_000}, "port"),
        ({"parallel": 0}, "parallel"),
        ({"tls_cert": Path("cert")}, "tls_key"),
        ({"api_key_file": Path("keys"), "host": "0.0.0.0"}, "host"),
    ],
)
def test_options_without_sense(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        CompletionsConfig(**options)
