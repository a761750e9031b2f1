"""OpenAI's own objects: each field of its client's types is read, ignored, or refused by name."""

from typing import Any, get_type_hints

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.llamacpp import LlamaAttachment
from logitsieve.completions import fields
from logitsieve.completions.checkers import checked
from logitsieve.completions.fields import CHAT, COMPLETION, IGNORED, MESSAGE, messages
from tests.completions.conftest import NAME, Client
from tests.refusals import refused

openai = pytest.importorskip("openai", reason="openai is not installed: pip install '.[dev]'")

REFUSED_CHAT = {*("audio", "functions", "moderation", "reasoning_effort", "web_search_options")}
REFUSED_MESSAGE = {"audio", "function_call"}
USER = {"role": "user", "content": "the time"}


def named(*types: Any) -> set[str]:
    return {name for one in types for name in get_type_hints(one)}


def test_every_field_of_a_request_is_known() -> None:
    from openai.types import chat
    from openai.types import completion_create_params as completion
    from openai.types.chat import completion_create_params as of_chat

    kinds = of_chat.CompletionCreateParamsNonStreaming, of_chat.CompletionCreateParamsStreaming
    assert named(*kinds) - CHAT.keys() == REFUSED_CHAT
    plain = completion.CompletionCreateParamsNonStreaming
    assert named(plain, completion.CompletionCreateParamsStreaming) <= COMPLETION.keys()
    assert named(chat.ChatCompletionStreamOptionsParam) == {"include_usage", "include_obfuscation"}
    roles = ("User", "System", "Developer", "Assistant", "Tool", "Function")
    sent = named(*(getattr(chat, f"ChatCompletion{role}MessageParam") for role in roles))
    answered = set(chat.ChatCompletionMessage.model_fields)
    assert sent | answered == REFUSED_MESSAGE | MESSAGE.keys()


@pytest.mark.parametrize("name", sorted(REFUSED_CHAT))
def test_what_is_not_supported_is_refused_unless_it_is_null(name: str) -> None:
    assert checked({"messages": [USER], name: None}, CHAT) == {"messages": [USER]}
    values: list[Any] = [[], {}, "high"]
    for value in values:
        with refused(name, "a field that is not supported"):
            checked({name: value}, CHAT)


def test_null_is_absent_in_every_field() -> None:
    for table in (CHAT, COMPLETION, fields.TOKENIZE, fields.DETOKENIZE):
        assert checked(dict.fromkeys(table), table) == {}
    null: dict[str, Any] = dict.fromkeys(MESSAGE.keys() | REFUSED_MESSAGE)
    assert messages("messages", [null | USER, null | {"role": "assistant"}]) == [
        USER,
        {"role": "assistant", "content": ""},
    ]
    options: dict[str, Any] = {"include_usage": None, "include_obfuscation": None}
    assert checked({"stream_options": options}, CHAT) == {"stream_options": False}


PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "the ", "prompt_cache_breakpoint": {"mode": "explicit"}}
]
PARTS += [{"type": "text", "text": "time", "prompt_cache_breakpoint": None}]
READ: list[tuple[dict[str, Any], dict[str, str]]] = [
    (USER | {"content": PARTS}, USER),
    (USER | {"name": "ann"}, USER | {"name": "ann"}),
    ({"role": "assistant", "refusal": "no"}, {"role": "assistant", "content": "no"}),
    (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": []},
        {"role": "assistant", "content": "no"},
    ),
    (
        {"role": "assistant", "content": "so", "annotations": [{"type": "url_citation"}]},
        {"role": "assistant", "content": "so"},
    ),
]
WRONG: list[tuple[Any, str]] = [
    (USER | {"content": None}, ".content"),
    ({"role": "user"}, ".content"),
    (USER | {"name": 5}, ".name"),
    (USER | {"tool_calls": [{"id": "a"}]}, ".tool_calls[0]"),
    (USER | {"tool_call_id": 5}, ".tool_call_id"),
    (USER | {"content": [{"type": "text"}]}, ".content[0].text"),
    (USER | {"content": [PARTS[0], {"type": "text", "text": 5}]}, ".content[1].text"),
    (USER | {"content": [PARTS[0] | {"more": 1}]}, ".content[0].more"),
    (USER | {"content": [{"type": ["text"]}]}, ".content[0]"),
]


@pytest.mark.parametrize(("sent", "read"), READ)
def test_a_message_is_read(sent: dict[str, Any], read: dict[str, str]) -> None:
    assert messages("messages", [sent]) == [read]


@pytest.mark.parametrize(("sent", "place"), WRONG)
def test_a_wrong_part_of_a_message_is_named(sent: Any, place: str) -> None:
    with refused(f"messages[1]{place}"):
        messages("messages", [USER, sent])


def test_an_answer_can_be_sent_back(client: Client) -> None:
    with openai.OpenAI(base_url=f"{client.address}/v1", api_key="none", max_retries=0) as official:
        given: dict[str, Any] = {"model": NAME, "max_tokens": 4, "temperature": 0, "user": "ann"}
        given |= {"store": True, "metadata": {"a": "b"}, "service_tier": "auto"}
        given |= {"parallel_tool_calls": False, "stream_options": None, "tools": None}
        history: list[Any] = [USER]

        def answered() -> Any:
            return official.chat.completions.create(messages=history, **given).choices[0].message

        answer = answered()
        history += [answer, USER]
        whole = answered()
        history[1] = answer.to_dict()
        assert answered() == whole
        history[1] = {"role": "assistant", "content": answer.content}
        assert answered() == whole


def test_the_seed_minus_one_draws_anew(attached: LlamaAttachment) -> None:
    def seeds(**given: Any) -> list[int]:
        asked = fields.completion({"prompt": "the", **given}, attached.context, NAME)
        drawing = asked.options.drawing(1)
        assert drawing is not None
        return [int(seed) for seed in drawing.seeds]

    for random in ({}, {"seed": -1}, {"seed": -1.0}, {"seed": None}):
        assert seeds(**random) != seeds(**random)
    for one in (0, 1, (1 << 64) - 1, -2, -(1 << 63)):
        assert seeds(seed=one) == seeds(seed=one) == [one % (1 << 64)]
    for wrong in (1 << 64, -(1 << 63) - 1, 0.5, True, "1"):
        with pytest.raises(InvalidRequest, match=r"^seed: "):
            seeds(seed=wrong)


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_fields_that_change_no_token_are_ignored(name: str) -> None:
    for table in (CHAT, COMPLETION):
        assert checked({name: {"any": "thing"}}, table) == {name: {"any": "thing"}}
