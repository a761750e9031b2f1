"""Command-line options derived from a frozen dataclass: names, types, defaults and help, once."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Annotated, Any

import typer
from rich.markup import escape

from logitsieve.types.errors import InvalidRequest

PANEL = "Options of the method"


def with_options(config: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give the command one option per field of `config` in place of its parameter `config`.

    A field's metadata holds its "help" and, for numbers, "low" and "high"; fields typed
    tuple[X, ...] become repeatable options.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(config)
        own = inspect.signature(command, eval_str=True).parameters.values()
        derived = [_parameter(field, hints[field.name]) for field in fields(config)]
        parameters = [p for p in own if p.name != "config"] + derived

        @wraps(command)
        def wrapped(**values: Any) -> None:
            chosen = {field.name: values.pop(field.name) for field in fields(config)}
            command(**values, config=config(**{k: _frozen(v) for k, v in chosen.items()}))

        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    if typing.get_origin(hint) is tuple:
        hint = list[typing.get_args(hint)[0]]  # type: ignore[misc]
    low, high = field.metadata.get("low"), field.metadata.get("high", math.inf)
    option = typer.Option(
        help=escape(field.metadata["help"]),
        min=low,
        max=None if high == math.inf else high,
        rich_help_panel=PANEL,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.default is MISSING else _thawed(field.default),
        annotation=Annotated[hint, option],
    )


def _thawed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def numbers(field: str, pairs: Sequence[str]) -> dict[str, float]:
    """["probes=2", "p1=0.99,p5=0.9"] -> {"probes": 2.0, ...}; InvalidRequest names `field`."""
    found: dict[str, float] = {}
    for pair in ",".join(pairs).split(",") if pairs else []:
        name, _, value = (part.strip() for part in pair.partition("="))
        try:
            number = float(value)
        except ValueError as error:
            raise InvalidRequest(field, repr(pair), "name=number") from error
        if not name:
            raise InvalidRequest(field, repr(pair), "name=number")
        found[name] = number
    return found
