"""`logitsieve admin`: needs no extra, only a server's admin port."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.console import print_json, shown
from logitsieve.cli.options import (
    AsJson,
    Authorities,
    ByTls,
    Certificate,
    Key,
    TokenFile,
    read_token,
    to_tls,
)
from logitsieve.client import AdminClient, ModelInfo

Action = Literal["load", "unload", "alias"]


def command(
    action: Annotated[Action, typer.Argument(help="What to do with the version.")],
    model: Annotated[
        str,
        typer.Argument(
            help="The version as name@version; `alias` removes the alias from a name alone."
        ),
    ],
    alias: Annotated[
        str,
        typer.Option(help="The alias; `load` gives it to the version once that answers."),
    ] = "",
    drain_s: Annotated[
        float,
        typer.Option(help="Seconds that `unload` waits for requests under way; 0 or more."),
    ] = 10.0,
    address: Annotated[str, typer.Option(help="host:port of the admin port.")] = "localhost:50052",
    timeout_s: Annotated[
        float, typer.Option(help="Seconds to wait for the answer, at most 3600.")
    ] = 600.0,
    tls: ByTls = False,
    tls_ca: Authorities = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Load, unload or name a version while the server goes on answering.

    Example: logitsieve admin load lm@4 --alias stable
    """
    with AdminClient(
        address,
        timeout_s=timeout_s,
        tls=to_tls(tls, tls_ca, tls_cert, tls_key),
        token=read_token(token_file),
    ) as client:
        info = _act(client, action, model, alias, drain_s)
    if as_json:
        print_json(asdict(info))
        return
    state = "unloaded" if info.state == "unspecified" else info.state
    named = f", named {', '.join(info.aliases)}" if info.aliases else ""
    print(shown(f"{info.name}@{info.version}: {state}{named}"))


def _act(client: AdminClient, action: Action, model: str, alias: str, drain_s: float) -> ModelInfo:
    name, at, digits = model.partition("@")
    number = int(digits) if digits.isdecimal() else None
    if number is None and (at or action != "alias"):
        raise InvalidRequest("model", model, "name@version, like lm@4")
    if action == "alias" or number is None:
        return client.set_alias(name, alias, number)
    if action == "load":
        return client.load(name, number, alias)
    return client.unload(name, number, drain_s)
