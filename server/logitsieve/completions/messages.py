"""Messages of a chat, as OpenAI's interface has them, answers sent back among them."""

import json
from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.completions.checkers import Checker, anything, checked, object_of, text
from logitsieve.grammar.grammars import DEEPEST, depth


def content(field: str, value: Any) -> str:
    if type(value) is list:
        return "".join(_part(f"{field}[{place}]", part) for place, part in enumerate(value))
    return text(field, value)


def _part(field: str, part: Any) -> str:
    if type(part) is not dict or part.get("type") not in ("text", "refusal"):
        raise InvalidRequest(field, f"{part!a:.80}", 'a part {"type": "text", "text": ...}')
    kind = part["type"]
    table = {"type": text, kind: text, "prompt_cache_breakpoint": anything}
    return text(f"{field}.{kind}", checked(part, table, f"{field}.").get(kind))


def tool_calls(field: str, value: Any) -> list[dict[str, Any]]:
    """Read calls that an answer made, with their arguments as objects, as templates take them."""
    if type(value) is not list:
        raise InvalidRequest(field, f"{value!a:.80}", "a list of calls")
    return [_call(f"{field}[{place}]", one) for place, one in enumerate(value)]


def _call(field: str, value: Any) -> dict[str, Any]:
    function = value.get("function") if type(value) is dict else None
    if type(function) is not dict:
        raise InvalidRequest(field, f"{value!a:.80}", "a call with a function")
    table: dict[str, Checker] = {"id": text, "type": text, "function": anything}
    given = checked(value, table, f"{field}.")
    read = checked(function, {"name": text, "arguments": text}, f"{field}.function.")
    within, written = f"{field}.function.arguments", read.get("arguments", "{}")
    try:
        arguments = json.loads(written)
    except (ValueError, RecursionError):
        arguments = None
    if type(arguments) is not dict or depth(arguments) > DEEPEST:
        raise InvalidRequest(within, f"{written!a:.80}", "JSON of an object")
    name = text(f"{field}.function.name", read.get("name"))
    return {**given, "function": {"name": name, "arguments": arguments}}


MESSAGE: dict[str, Checker] = {
    "role": text,
    "content": content,
    "name": text,
    "refusal": text,
    "annotations": anything,
    "tool_calls": tool_calls,
    "tool_call_id": text,
}


def messages(field: str, value: Any) -> list[dict[str, Any]]:
    allowed = 'a list of objects {"role": text, "content": text}'
    if type(value) is not list or not value:
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    return [_message(f"{field}[{place}]", one, allowed) for place, one in enumerate(value)]


def _message(field: str, value: Any, allowed: str) -> dict[str, Any]:
    given = object_of(field, value, MESSAGE, allowed)
    made: dict[str, Any] = {"role": text(f"{field}.role", given.get("role"))}
    said = given.get("content")
    if said is None and made["role"] == "assistant":
        said = given.get("refusal", "")
    made["content"] = text(f"{field}.content", said)
    more = ("name", "tool_call_id", *["tool_calls"] * bool(given.get("tool_calls")))
    return made | {name: given[name] for name in more if name in given}
