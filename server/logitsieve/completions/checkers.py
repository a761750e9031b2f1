"""Checks of a request's values, and of its fields by a table of them; null counts as absent."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from logitsieve.api import checks
from logitsieve.api.errors import InvalidRequest

Checker = Callable[[str, Any], Any]


def number(low: float, high: float) -> Checker:
    return partial(checks.number, low=low, high=high)


def integer(low: int, high: int) -> Checker:
    """Accept a whole number, even as a float, which some clients send."""

    def checked(field: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return checks.whole(field, value, low, high)

    return checked


def boolean(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidRequest(field, f"{value!a:.80}", "true or false")
    return value


def text(field: str, value: Any) -> str:
    if type(value) is not str:
        raise InvalidRequest(field, f"{value!a:.80}", "a text")
    return value


def only(allowed: Any) -> Checker:
    """Accept a field that is not supported if it has its neutral value."""

    def checked(field: str, value: Any) -> Any:
        if value != allowed or type(value) is not type(allowed):
            raise InvalidRequest(field, f"{value!a:.80}", f"{allowed!r}: it is not supported")
        return value

    return checked


def anything(field: str, value: Any) -> Any:
    return value


def checked(
    body: Mapping[str, Any], table: Mapping[str, Checker], within: str = ""
) -> dict[str, Any]:
    given = {field: value for field, value in body.items() if value is not None}
    for field in given:
        if field not in table:
            alike = ", ".join(get_close_matches(field[:80], table, n=8, cutoff=0))
            name = f"{within}{ascii(field)[1:-1]:.60}"
            raise InvalidRequest(name, "a field that is not supported", alike)
    return {field: table[field](f"{within}{field}", value) for field, value in given.items()}


def object_of(field: str, value: Any, table: Mapping[str, Checker], allowed: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    return checked(value, table, f"{field}.")
