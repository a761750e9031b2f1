from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.completions.checkers import Checker, anything, boolean, checked, object_of, text

if TYPE_CHECKING:
    from logitsieve.grammar import Grammar, Grammars

MOST_CHOSEN = 1024
FORMATS = "text, json_object or json_schema"


@dataclass(frozen=True)
class Structure:
    """A grammar to compile; `kind` is a method of `Grammars`."""

    field: str
    kind: str
    value: Any

    def compiled(self, grammars: Grammars) -> Grammar:

        grammar: Grammar = getattr(grammars, self.kind)(self.value, name=self.field)
        return grammar


def json_schema(field: str, value: Any) -> Structure:
    """Read a schema, which may be text."""
    if not isinstance(value, str | dict | bool):
        raise InvalidRequest(field, f"{value!a:.80}", "a JSON schema")
    return Structure(field, "json_schema", value)


def regex(field: str, value: Any) -> Structure:
    return Structure(field, "regex", text(field, value))


def lark(field: str, value: Any) -> Structure:
    return Structure(field, "lark", text(field, value))


def choice(field: str, value: Any) -> Structure:
    listed = type(value) is list and 0 < len(value) <= MOST_CHOSEN
    if not listed or not all(type(one) is str and one for one in value):
        allowed = f"1 to {MOST_CHOSEN} texts, none of them empty"
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    return Structure(field, "lark", "start: " + " | ".join(map(json.dumps, value)))


def response_format(field: str, value: Any) -> Structure | None:
    kind = value.get("type") if type(value) is dict else None
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(field, f"{value!a:.80}", f"an object with a type: {FORMATS}")
    table: dict[str, Checker] = {"type": text, "json_schema": anything}
    given = checked(value, table, f"{field}.")
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure(field, "json_schema", {"type": "object"})
    within = f"{field}.json_schema"
    described_by: dict[str, Checker] = {
        "name": text,
        "description": text,
        "strict": boolean,
        "schema": json_schema,
    }
    read = object_of(within, given.get("json_schema"), described_by, "an object with a schema")
    structure: Structure | None = read.get("schema")
    if structure is None:
        raise InvalidRequest(f"{within}.schema", "nothing", "a JSON schema")
    return structure


def structured_outputs(field: str, value: Any) -> Structure:
    table: dict[str, Checker] = {
        "json": json_schema,
        "regex": regex,
        "choice": choice,
        "grammar": lark,
        "json_object": boolean,
    }
    made = checked(value, table, f"{field}.") if type(value) is dict else {}
    if len(made) != 1 or made.get("json_object") is False:
        raise InvalidRequest(field, f"{value!a:.80}", f"an object with one of {', '.join(table)}")
    [(kind, one)] = made.items()
    if kind == "json_object":
        return Structure(f"{field}.json_object", "json_schema", {"type": "object"})
    structure: Structure = one
    return structure


STRUCTURED: dict[str, Checker] = {
    "response_format": response_format,
    "guided_json": json_schema,
    "guided_regex": regex,
    "guided_choice": choice,
    "guided_grammar": lark,
    "structured_outputs": structured_outputs,
}


def structure_of(given: Mapping[str, Any], calls: Structure | None) -> Structure | None:
    """Return the structure that fields or tools ask for. InvalidRequest names a second one."""
    asked = [calls] if calls else []
    asked += [given[name] for name in STRUCTURED if given.get(name) is not None]
    if len(asked) > 1:
        raise InvalidRequest(asked[1].field, "another", f"none beside {asked[0].field}")
    return asked[0] if asked else None
