from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.completions.checkers import Checker, anything, boolean, checked, object_of, text
from logitsieve.completions.structured import Structure
from logitsieve.grammar.grammars import JSON_OPTIONS, OF_LLGUIDANCE, check_schema

MOST_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
OPENED, CLOSED = "<tool_call>", "</tool_call>"  # as in Hermes and Qwen
CHOICES = ("none", "auto", "required")


def tools(name: str, value: Any) -> list[dict[str, Any]]:
    allowed = f"1 to {MOST_TOOLS} functions"
    if type(value) is not list or not 0 < len(value) <= MOST_TOOLS:
        got = f"{len(value)} tools" if type(value) is list else f"{value!a:.80}"
        raise InvalidRequest(name, got, allowed)
    read = [_tool(f"{name}[{place}]", one) for place, one in enumerate(value)]
    names = [one["function"]["name"] for one in read]
    if len({*names}) < len(names):
        raise InvalidRequest(name, "a name twice", "functions of distinct names")
    return read


def _tool(name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict or value.get("type") != "function":
        allowed = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        raise InvalidRequest(name, f"{value!a:.80}", allowed)
    given = checked(value, {"type": text, "function": anything}, f"{name}.")
    within = f"{name}.function"
    table: dict[str, Checker] = {
        "name": _name,
        "description": text,
        "parameters": _parameters,
        "strict": boolean,
    }
    read = object_of(within, given.get("function"), table, "an object with a name")
    read["name"] = _name(f"{within}.name", read.get("name"))
    return {"type": "function", "function": read}


def _name(name: str, value: Any) -> str:
    if type(value) is not str or not NAME.fullmatch(value):
        raise InvalidRequest(name, f"{value!a:.80}", "1 to 64 letters, digits, _ and -")
    return value


def _parameters(name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise InvalidRequest(name, f"{value!a:.80}", "a JSON schema of an object")
    check_schema(value, name)
    return value


def tool_choice(name: str, value: Any) -> str:
    """Read one of CHOICES, or a function's name after a colon."""
    if value in CHOICES:
        return str(value)
    allowed = ", ".join(CHOICES) + ' or {"type": "function", "function": {"name": ...}}'
    function = value.get("function") if type(value) is dict else None
    if type(function) is not dict or value.get("type") != "function":
        raise InvalidRequest(name, f"{value!a:.80}", allowed)
    return ":" + _name(f"{name}.function.name", function.get("name"))


@dataclass(frozen=True)
class Calling:
    structure: Structure
    marked: bool  # between OPENED and CLOSED, after any text


def calling(listed: Sequence[dict[str, Any]], choice: str, template: str) -> Calling | None:
    """Return how an answer may call the tools; None if it may not."""
    if choice == "none":
        return None
    functions = [one["function"] for one in listed]
    named = [one for one in functions if choice in (":" + one["name"], *CHOICES)]
    if not named:
        names = ", ".join(one["name"] for one in functions)
        raise InvalidRequest("tool_choice", choice[1:], f"one of the tools: {names}")
    marked = OPENED in template
    if choice == "auto" and not marked:
        allowed = f"required or a function: the model's template does not mark calls by {OPENED}"
        raise InvalidRequest("tool_choice", "auto", allowed)
    return Calling(Structure("tools", "lark", _grammar(named, marked, choice == "auto")), marked)


def _grammar(functions: Sequence[dict[str, Any]], marked: bool, optional: bool) -> str:
    lines = ["call: " + " | ".join(f"call_{place}" for place in range(len(functions)))]
    for place, function in enumerate(functions):
        schema = {"type": "object", **function.get("parameters", {})}
        schema[OF_LLGUIDANCE] = JSON_OPTIONS
        begin = json.dumps('{"name": "' + function["name"] + '", "arguments": ')
        lines.append(f'call_{place}: {begin} args_{place} "}}"')
        lines.append(f"args_{place}: %json {json.dumps(schema)}")
    start = "start: call"
    if marked:
        start = f'start: "{OPENED}\\n" call "\\n{CLOSED}"'
    if optional:
        lines += [f'before[suffix="{OPENED}"]: /(.|\\n)*/', "plain: /(.|\\n)*/"]
        start = f'start: plain | before "\\n" call "\\n{CLOSED}"'
    return "\n".join([start, *lines])


@dataclass
class CallReader:
    marked: bool
    call: dict[str, Any] | None = None
    _held: str = ""
    _begun: bool = field(init=False)  # all that follows belongs to a call

    def __post_init__(self) -> None:
        self._begun = not self.marked

    def shown(self, added: str, end: bool) -> str:
        """Take the next (or last: `end`) part of a text; return what cannot belong to a call."""
        self._held += added
        if not self._begun:
            before, found, _ = self._held.partition(OPENED)
            if found:
                self._begun, self._held = True, self._held[len(before) :]
                return before + (self.shown("", end) if end else "")
            sizes = range(len(OPENED) - 1, 0, -1)
            kept = next((size for size in sizes if self._held.endswith(OPENED[:size])), 0)
            cut = len(self._held) - (0 if end else kept)
            shown, self._held = self._held[:cut], self._held[cut:]
            return shown
        if not end:
            return ""
        held, self._held = self._held, ""
        self.call = _read_call(held.removeprefix(OPENED).partition(CLOSED)[0])
        return "" if self.call else held  # a call that was cut off is text


def _read_call(written: str) -> dict[str, Any] | None:
    try:
        read = json.loads(written)
        function = {
            "name": read["name"],
            "arguments": json.dumps(read["arguments"], ensure_ascii=False),
        }
    except (ValueError, KeyError, TypeError):
        return None
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
