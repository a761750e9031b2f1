"""Templates as published models have them, and Hugging Face's renderer: equal texts or errors."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.chat import SPECIAL, render_chat
from logitsieve.llamacpp.template import FAILURES, render

FILES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
WRONG = {
    "private": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "private keyword": "{{ namespace(__class__=1) }}",
    "type": "{{ dict.mro() }}",
    "append": "{{ messages.append(1) }}",
    "length": "{{ absent | length + 1 }}{{ absent.more }}",
    "include": "{% include 'a' %}",
    "unclosed": "{% generation %}",
    "sum": "{{ 1 + 'a' }}",
    "number": "{{ messages + 1 }}",
    "times": "{{ 'a' * 'b' }}",
    "directive": "{{ '%d' % 'a' }}",
}
TEMPLATES = {**{file.stem: file.read_text() for file in FILES}, **WRONG}

SYSTEM, USER = ({"role": role, "content": f" be {role} \n"} for role in ("system", "user"))
ANSWER = {"role": "assistant", "content": "<think>\nso\n</think>\n\n it is <b>'é'</b> "}
TOOL = {"role": "tool", "content": '{"found": 1}'}
CHATS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER | {"name": "ann"}],
    "long": [USER, ANSWER] * 3 + [USER],
    "answer last": [USER, ANSWER],
    "two users": [USER, USER],
    "system last": [USER, SYSTEM],
    "tool": [USER, ANSWER, TOOL, TOOL],
    "called": [
        USER,
        ANSWER | {"tool_calls": [{"function": {"name": "find", "arguments": {"what": "é"}}}]},
        TOOL,
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " go "}]}],
    "none": [{"role": "user", "content": None}],
    "empty": [],
}
CALLED = {"name": "find", "parameters": {"what": {"type": "string", "description": "é < 'b'"}}}
MORE: list[dict[str, Any]] = [
    {},
    {"tools": [{"type": "function", "function": CALLED}], "add_generation_prompt": False},
    {"documents": [{"title": "a", "text": "b"}], "enable_thinking": False},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
GIVEN = {"tools": None, "documents": None, "add_generation_prompt": True, **TOKENS}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_at_hugging_face(name: str) -> None:
    hf = pytest.importorskip("transformers.utils.chat_template_utils", reason="of [huggingface]")
    made = set()
    for messages, more in itertools.product(CHATS.values(), MORE):
        texts: list[str | None] = []
        for ours in (True, False):
            given = {**GIVEN, **more, "chat_template": TEMPLATES[name]}
            try:
                if ours:
                    texts.append(render(given.pop("chat_template"), messages=messages, **given))
                else:
                    texts.append(hf.render_jinja_template([messages], **given)[0][0])
            except FAILURES:
                texts.append(None)
        assert texts[0] == texts[1]
        made.add(texts[0])
    assert made == {None} if name in WRONG else len(made) > 3


def test_a_chat_gives_its_template_the_names_that_hugging_face_gives() -> None:
    keys = {key: text for name, key in SPECIAL.items() if (text := TOKENS.get(name))}
    for file in FILES:
        gguf = SimpleNamespace(
            chat_template=file.read_text(), special=lambda key: keys.get(key, "")
        )
        for messages in (CHATS["user"], CHATS["turns"], CHATS["two users"]):
            try:
                expected = render(gguf.chat_template, messages=messages, **GIVEN)
            except FAILURES:
                with pytest.raises(InvalidRequest, match="chat: got"):
                    render_chat(SimpleNamespace(gguf=gguf), messages)
            else:
                assert render_chat(SimpleNamespace(gguf=gguf), messages) == expected
