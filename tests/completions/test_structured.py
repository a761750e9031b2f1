"""Texts of a structure, over HTTP."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from logitsieve.completions.structured import response_format, structured_outputs
from tests.completions.conftest import Client
from tests.refusals import refused

pytest.importorskip("llguidance", reason="needs the extra grammar")
jsonschema = pytest.importorskip("jsonschema")

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
USER = {"role": "user", "content": "the time"}
FIELDS: dict[str, tuple[dict[str, Any], Any]] = {
    "json_schema": ({"response_format": NAMED}, SCHEMA),
    "guided_json": ({"guided_json": json.dumps(SCHEMA)}, SCHEMA),
    "structured_outputs": ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
    "guided_regex": ({"guided_regex": "m{2}[a-c]"}, "mm[a-c]"),
    "guided_choice": ({"guided_choice": ['say "yes"', "no"]}, 'say "yes"|no'),
    "guided_grammar": ({"guided_grammar": 'start: "a" b\nb: "m" | "o" b'}, "ao*m"),
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
    "drawn", [{"temperature": 0}, {"temperature": 1.2, "seed": 3, "top_p": 0.9}], ids=str
)
def test_a_text_has_the_structure_that_is_asked_for(
    client: Client, name: str, drawn: dict[str, Any]
) -> None:
    asked, truth = FIELDS[name]
    made = client.completion(prompt="the time", max_tokens=120, **asked, **drawn)["choices"][0]
    assert made["finish_reason"] == "stop"
    if isinstance(truth, str):
        assert re.fullmatch(truth, made["text"])
    else:
        jsonschema.validate(json.loads(made["text"]), truth)


def test_a_chat_with_a_structure_streams_the_same(client: Client) -> None:
    body = {"messages": [USER], "response_format": NAMED, "temperature": 0, "n": 2}
    status, made = client.post("/v1/chat/completions", body)
    assert status == 200
    texts = [choice["message"]["content"] for choice in made["choices"]]
    assert texts[0] == texts[1]
    jsonschema.validate(json.loads(texts[0]), SCHEMA)
    _, streamed = client.post("/v1/chat/completions", {**body, "n": 1, "stream": True})
    chunks = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == texts[0]


def test_other_requests_are_not_changed_by_a_structured_one(client: Client) -> None:
    plain: dict[str, Any] = {"prompt": "the of", "max_tokens": 8, "temperature": 0}
    alone = client.completion(**plain)["choices"][0]["text"]
    body = {**plain, "prompt": ["the of"], "guided_regex": "m{8}"}
    assert client.completion(**body)["choices"][0]["text"] == "m" * 8
    assert client.completion(**plain)["choices"][0]["text"] == alone


def test_a_grammar_that_fails_at_a_step_ends_its_own_request_alone(client: Client) -> None:
    names = {f"p{number}": {"type": "null"} for number in range(1500)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    plain: dict[str, Any] = {"prompt": "the of", "max_tokens": 120, "temperature": 0}
    alone = client.completion(**plain)["choices"][0]["text"]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completion, **plain)
        for _ in range(5):
            asked = {"prompt": "the", "guided_json": schema}
            error = client.refused("/v1/completions", asked)
            assert (error["status"], error["param"]) == (400, "guided_json")
        assert other.result()["choices"][0]["text"] == alone


BAD: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "xml"}},
    "response_format ": {"response_format": "json_object"},
    "response_format.json_schema": {"response_format": {"type": "json_schema"}},
    "response_format.json_schema.schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n"}}
    },
    "response_format.json_schema.schema ": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}
    },
    "guided_json": {"guided_json": [1]},
    "guided_json ": {"guided_json": {"$ref": "http://example.com/"}},
    "guided_regex": {"guided_regex": "(("},
    "guided_grammar": {"guided_grammar": "start: other"},
    "guided_choice": {"guided_choice": []},
    "guided_choice ": {"guided_choice": ["a", ""]},
    "structured_outputs": {"structured_outputs": {"regex": "a", "json": {}}},
    "structured_outputs.xml": {"structured_outputs": {"xml": "a"}},
    "guided_regex ": {"guided_json": {}, "guided_regex": "a"},
}


@pytest.mark.parametrize("field", BAD)
def test_a_structure_that_cannot_be_followed_names_its_field(client: Client, field: str) -> None:
    error = client.refused("/v1/completions", {"prompt": [5], **BAD[field]})
    assert (error["status"], error["param"]) == (400, field.strip())
    assert error["message"].startswith(f"{field.strip()}: got ")


def test_plain_text_and_any_object() -> None:
    assert response_format("response_format", {"type": "text"}) is None
    made = response_format("response_format", {"type": "json_object"})
    assert made is not None
    assert made.value == {"type": "object"}
    assert structured_outputs("s", {"json_object": True}).value == {"type": "object"}
    with refused("s"):
        structured_outputs("s", {"json_object": False})
