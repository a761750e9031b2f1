"""Command-line options: those of a frozen dataclass, those that several commands share, and files.

A dataclass is the one list of names, types, defaults, ranges and help.
"""

from __future__ import annotations

import inspect
import math
import tomllib
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.client import Tls

# Shared by the commands that connect to a server.
ByTls = Annotated[bool, typer.Option("--tls", help="Connect with TLS.")]
Authorities = Annotated[
    Path | None,
    typer.Option(help="PEM file of the authorities that sign the server's certificate."),
]
Certificate = Annotated[Path | None, typer.Option(help="PEM file of the client's certificate.")]
Key = Annotated[Path | None, typer.Option(help="PEM file of the private key of --tls-cert.")]
TokenFile = Annotated[Path | None, typer.Option(help="File that holds nothing but a bearer token.")]

# Shared by the commands that choose an operating point.
Knobs = Annotated[
    list[str] | None,
    typer.Option(
        "--knob", metavar="NAME=VALUE", help="Knob of the head as NAME=VALUE; repeatable."
    ),
]
IndexFolder = Annotated[Path, typer.Argument(help="The index: a folder <name>/<version>.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

# What a file may hold for a field of each type: no string for a number, no number for a flag.
IN_TOML: dict[type, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    Path: (str,),
}


def with_options(
    config: type[Any], *, from_file: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give the command one option per field of `config` in place of its parameter `config`.

    A field's metadata holds its "help" and, for numbers, "low" and "high"; fields typed
    tuple[X, ...] become repeatable options. `from_file` adds --config, a TOML file whose keys are
    the names of the fields; options of the command line win.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(config)
        declared = inspect.signature(command, eval_str=True).parameters.values()
        derived = [_parameter(field, hints[field.name]) for field in fields(config)]
        parameters = (
            [p for p in declared if p.name != "config"] + [CONTEXT, FILE] * from_file + derived
        )

        @wraps(command)
        def wrapped(**values: Any) -> None:
            given = {field.name: values.pop(field.name) for field in fields(config)}
            chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            context, file = values.pop("context", None), values.pop("config", None)
            if file is not None:
                options = read_options(file, config)
                chosen |= {k: v for k, v in options.items() if not is_typed(k, context)}
            command(**values, config=config(**chosen))

        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate


CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
FILE = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(help="TOML file of these options; options of the command line win."),
    ],
)


def read_options(file: Path, config: type[Any], flag: str = "config") -> dict[str, Any]:
    """The fields of `config` that a TOML file sets; InvalidRequest names what is wrong in it."""
    try:
        options = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(flag, f"{file}: {error}", "a TOML file of options") from error
    hints = typing.get_type_hints(config)
    for key in options:
        if key not in hints:
            raise InvalidRequest(key, f"an option that is unknown, in {file}", ", ".join(hints))
    return {key: _of_type(key, value, hints[key]) for key, value in options.items()}


def is_typed(option: str, context: typer.Context) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _of_type(key: str, value: Any, hint: Any) -> Any:
    """A value of TOML as the field has it; what a Literal allows is left to the dataclass."""
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InvalidRequest(key, repr(value), "list")
        return tuple(_of_type(key, one, typing.get_args(hint)[0]) for one in value)
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)] or [str]
    wanted = next(kind for kind in kinds if kind is not NoneType)
    accepted = IN_TOML[wanted]
    if type(value) not in accepted:
        allowed = " or ".join(kind.__name__ for kind in accepted)
        raise InvalidRequest(key, repr(value), allowed)
    return wanted(value)


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    if typing.get_origin(hint) is tuple:
        hint = list[typing.get_args(hint)[0]]  # type: ignore[misc]
    low, high = field.metadata.get("low"), field.metadata.get("high", math.inf)
    option = typer.Option(
        help=field.metadata["help"], min=low, max=None if high == math.inf else high
    )
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[hint, option],
    )


def numbers(field: str, pairs: Sequence[str]) -> dict[str, float]:
    """["probes=2", "p1=0.99,p5=0.9"] -> {"probes": 2.0, ...}; InvalidRequest names `field`."""
    values: dict[str, float] = {}
    for pair in ",".join(pairs).split(",") if pairs else []:
        name, _, value = (part.strip() for part in pair.partition("="))
        try:
            number = float(value)
        except ValueError as error:
            raise InvalidRequest(field, repr(pair), "name=number") from error
        if not name:
            raise InvalidRequest(field, repr(pair), "name=number")
        values[name] = number
    return values


def to_tls(wanted: bool, ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    """TLS by the options of a command that connects; None where no option asks for it."""
    return Tls(ca=ca, cert=cert, key=key) if wanted or ca or cert or key else None


def read_token(path: Path | None) -> str:
    """The token in the file, "" without one; InvalidRequest names `token_file`."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("token_file", f"{path} ({error})", "a file with a token") from error


def read_words(path: Path) -> list[str]:
    """Words by id, the lines of a UTF-8 file; InvalidRequest names `vocabulary`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("vocabulary", f"{path} ({error})", "a UTF-8 text file") from error
    return text.removesuffix("\n").split("\n")
