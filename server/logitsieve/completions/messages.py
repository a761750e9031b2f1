"""Messages of a chat, as OpenAI's interface has them, answers sent back among them."""

from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.completions.checkers import Checker, anything, checked, only, text


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


MESSAGE: dict[str, Checker] = {
    "role": text,
    "content": content,
    "name": text,
    "refusal": text,
    "annotations": anything,
    "tool_calls": only([]),
}


def messages(field: str, value: Any) -> list[dict[str, str]]:
    allowed = 'a list of objects {"role": text, "content": text}'
    if type(value) is not list or not value:
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    return [_message(f"{field}[{place}]", one, allowed) for place, one in enumerate(value)]


def _message(field: str, value: Any, allowed: str) -> dict[str, str]:
    if type(value) is not dict:
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    given = checked(value, MESSAGE, f"{field}.")
    made = {"role": text(f"{field}.role", given.get("role"))}
    said = given.get("content")
    if said is None and made["role"] == "assistant":
        said = given.get("refusal", "")
    made["content"] = text(f"{field}.content", said)
    return made | ({"name": given["name"]} if "name" in given else {})
