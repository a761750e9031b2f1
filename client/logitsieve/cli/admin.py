from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import AsJson, flag
from logitsieve.cli.output import print_json, shown
from logitsieve.cli.query import TIMEOUT, ServerOptions
from logitsieve.client import AdminClient, ModelInfo
from logitsieve.client.admin import drain_seconds
from logitsieve.client.connection import seconds

Action = Literal["load", "unload", "alias"]


@dataclass(frozen=True, kw_only=True)
class AdminOptions(ServerOptions):
    address: str = flag("localhost:50052", "host:port of the admin port.")
    timeout_s: float = flag(600.0, TIMEOUT, callback=seconds)
    alias: str = flag("", "The alias; `load` points it at the version once that answers.")
    drain_s: float = flag(
        10.0, "Seconds that `unload` waits for current requests, 0 to 3600.", callback=drain_seconds
    )


def command(
    action: Annotated[Action, typer.Argument(help="What to do with the version.")],
    model: Annotated[
        str,
        typer.Argument(
            help="The version as name@version; with a name alone, `alias` removes the alias."
        ),
    ],
    options: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """Load, unload or name a version of a model while the server keeps answering.

    Example: logitsieve admin load lm@4 --alias stable
    """
    with options.open(AdminClient) as client:
        info = _act(client, action, model, options)
    if as_json:
        print_json(asdict(info))
        return
    state = "unloaded" if info.state == "unspecified" else info.state
    named = f", named {', '.join(info.aliases)}" if info.aliases else ""
    print(shown(f"{info.name}@{info.version}: {state}{named}"))


def _act(client: AdminClient, action: Action, model: str, options: AdminOptions) -> ModelInfo:
    name, at, digits = model.partition("@")
    number = int(digits) if digits.isdecimal() else None
    if number is None and (at or action != "alias"):
        raise InvalidRequest("model", model, "name@version, like lm@4")
    if action == "alias" or number is None:
        return client.set_alias(name, options.alias, number)
    if action == "load":
        return client.load(name, number, options.alias)
    return client.unload(name, number, options.drain_s)
