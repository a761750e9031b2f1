"""Tools: their fields, calls by their schemas, and answers in OpenAI's form."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from logitsieve.client.llamacpp import LlamaContext, attach
from logitsieve.completions.fields import messages
from logitsieve.completions.tools import CallReader
from tests.client.dense import DenseDecoder
from tests.completions.conftest import Client, serving
from tests.llamacpp.small_model import CHAT, Make
from tests.refusals import refused
from tests.server.running import Loop

pytest.importorskip("llguidance", reason="needs the extra grammar")

TEMPLATE = "{% for tool in tools or [] %}{{ tool.function.name }}{{ tool | tojson | length }} "
TEMPLATE += "{% endfor %}" + CHAT
MARKED = "{# <tool_call> #}" + TEMPLATE
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/c"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"c": {"enum": ["go", "see"]}},
}


def function(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


EMPTY = {"properties": {}, "additionalProperties": False}
TOOLS = [function("time", description="?", parameters=CITY), function("stop", parameters=EMPTY)]
USER = {"role": "user", "content": "the time"}
CHATS = "/v1/chat/completions"
PLAIN, HERMES = "plain", "hermes"


@pytest.fixture(scope="module", params=[PLAIN, HERMES])
def client(request: pytest.FixtureRequest, loop: Loop, make_gguf: Make) -> Iterator[Client]:
    path = make_gguf(chat_template=TEMPLATE if request.param == PLAIN else MARKED)
    with LlamaContext(path, sequences=1, positions=512) as context:
        decoder = DenseDecoder(context.gguf.matrix.rows(slice(None)), context.gguf.bias)
        with attach(context, decoder) as attached, serving(loop, attached) as (client, _):
            yield client


def asked(client: Client, **more: Any) -> dict[str, Any]:
    status, made = client.post(CHATS, {"messages": [USER], "temperature": 0, **more})
    assert status == 200, made
    return dict(made["choices"][0])


NAMED = function("stop")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_tool_is_called_by_its_schema(client: Client, choice: Any) -> None:
    made = asked(client, tools=TOOLS, tool_choice=choice, max_tokens=120)
    assert made["finish_reason"] == "tool_calls"
    assert made["message"]["content"] is None
    [call] = made["message"]["tool_calls"]
    assert (call["type"], call["id"][:5]) == ("function", "call_")
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "stop":
        assert arguments == {}
    else:
        assert choice == "required"
        assert arguments in ({"city": "go"}, {"city": "see"})


def test_a_stream_has_the_call_in_its_last_delta(client: Client) -> None:
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": NAMED, "stream": True}
    _, streamed = client.post(CHATS, {**body, "max_tokens": 120})
    chunks = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(one["delta"].get("content", "") for one in choices) == ""
    [call] = choices[-1]["delta"]["tool_calls"]
    assert (call["index"], call["function"]) == (0, {"name": "stop", "arguments": "{}"})
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_off_is_shown_as_text(client: Client) -> None:
    made = asked(client, tools=TOOLS, tool_choice="required", max_tokens=5)
    assert made["finish_reason"] == "length"
    assert "tool_calls" not in made["message"]
    assert made["message"]["content"]


def test_without_a_choice_a_model_answers_as_it_likes(client: Client) -> None:
    plain = asked(client, max_tokens=6)["message"]["content"]
    assert (
        asked(client, tools=TOOLS, tool_choice="none", max_tokens=6)["message"]["content"] == plain
    )
    status, made = client.post(CHATS, {"messages": [USER], "tools": TOOLS, "max_tokens": 6})
    if status == 400:
        assert made["error"]["message"].startswith("tool_choice: got auto, allowed: required")
    else:
        assert made["choices"][0]["finish_reason"] == "length"


BAD: dict[str, dict[str, Any]] = {
    "tools": {"tools": []},
    "tools ": {"tools": [TOOLS[0], TOOLS[0]]},
    "tools  ": {"tool_choice": "required"},
    "tools   ": {"tools": [function("a", parameters={"$ref": "#/no"})]},
    "tools[0]": {"tools": [{"type": "retrieval"}]},
    "tools[0].function": {"tools": [{"type": "function"}]},
    "tools[0].function.name": {"tools": [function("a b")]},
    "tools[0].function.parameters": {"tools": [function("a", parameters=5)]},
    "tool_choice": {"tools": TOOLS, "tool_choice": "any"},
    "tool_choice ": {"tools": TOOLS, "tool_choice": function("go")},
    "response_format": {"tools": TOOLS, "response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("field", BAD)
def test_a_tool_that_cannot_be_called_names_its_field(client: Client, field: str) -> None:
    body = {"messages": [USER], "tool_choice": "required", **BAD[field]}
    error = client.refused(CHATS, body)
    assert (error["status"], error["param"]) == (400, field.strip())


def test_a_template_that_ignores_tools_is_named(loop: Loop, make_gguf: Make) -> None:
    with LlamaContext(make_gguf(chat_template=CHAT), sequences=1, positions=256) as context:
        decoder = DenseDecoder(context.gguf.matrix.rows(slice(None)), context.gguf.bias)
        with attach(context, decoder) as attached, serving(loop, attached) as (client, _):
            body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
            error = client.refused(CHATS, body)
    assert (error["status"], error["param"]) == (400, "tools")
    assert "ignores them" in error["message"]


CALL = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"a": 1}'}}


def test_calls_and_results_are_sent_back() -> None:
    said: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    read = messages("messages", said)
    assert read[0]["tool_calls"][0]["function"] == {"name": "time", "arguments": {"a": 1}}
    assert read[0]["content"] == ""
    assert read[1] == said[1]
    wrong = {**CALL, "function": {"name": "time", "arguments": "[1]"}}
    with refused("messages[0].tool_calls[0].function.arguments"):
        messages("messages", [{"role": "assistant", "tool_calls": [wrong]}])


def test_text_before_a_call_is_shown_at_once() -> None:
    whole = 'so <b>: <tool_call>\n{"name": "a", "arguments": {"é": "<"}}\n</tool_call>'
    for size in (1, 3, 100):
        reader, shown = CallReader(marked=True), []
        parts = [whole[start : start + size] for start in range(0, len(whole), size)]
        for place, part in enumerate(parts):
            shown.append(reader.shown(part, place + 1 == len(parts)))
        assert "".join(shown) == "so <b>: "
        assert reader.call is not None
        assert reader.call["function"] == {"name": "a", "arguments": '{"é": "<"}'}
    plain = CallReader(marked=True)
    assert [plain.shown("a <tool", False), plain.shown("s>", False), plain.shown("<", True)] == [
        "a ", "<tools>", "<",
    ]  # fmt: skip
