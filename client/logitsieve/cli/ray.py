from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from logitsieve.cli.options import AsJson
from logitsieve.cli.output import print_json, print_table
from logitsieve.ray import RayOptions
from logitsieve.server.config import ServeConfig

if TYPE_CHECKING:
    from logitsieve.ray.deployment import Status

Action = Literal["up", "status", "down"]


Address = Annotated[str, typer.Option(help="The Ray cluster: auto for this node's, or host:port.")]


def command(
    action: Annotated[Action, typer.Argument(help="What to do with the deployment.")],
    server: ServeConfig,
    options: RayOptions,
    address: Address = "auto",
    as_json: AsJson = False,
) -> None:
    """Serve indexes in shards on Ray, show ingresses and versions, or stop everything.

    `up` runs every shard of --model-repository and, on each node with the resource --serve-on, an
    ingress, which is a server with the options of `serve`. Another `up` opens versions that are new
    in the folder and closes those that are gone. --threads is for each replica.

    Example: logitsieve ray up --model-repository models-4 --replicas 2 --serve-on ingress
    """
    from logitsieve.ray.deployment import connect, deploy, remove, status_of

    connect(address)
    if action == "up":
        status = deploy(server, options)
    else:
        if action == "down":
            remove()
        status = status_of()
    if as_json:
        print_json(facts_of(status))
    else:
        _print(status)


def facts_of(status: Status) -> dict[str, Any]:
    ingresses = [
        {
            "name": name,
            **({} if state is None else state._asdict()),
            "versions": [] if state is None else [each._asdict() for each in state.versions],
        }
        for name, state in status.items()
    ]
    return {"ingresses": ingresses}


def _print(status: Status) -> None:
    if not status:
        print("Nothing of logitsieve is deployed.")
        return
    ingresses, versions = [], []
    for name, state in status.items():
        if state is None:
            ingresses.append((name, "does not answer", "", "", ""))
            continue
        admin = str(state.admin_port or "")
        ingresses.append((name, state.node, str(state.port), str(state.http_port), admin))
        versions += [
            (name, f"{each.name}@{each.number}", each.state, each.digest, each.error)
            for each in state.versions
        ]
    print_table("Ingresses", ["name", "node", "gRPC", "HTTP", "admin"], ingresses)
    print_table("Versions", ["ingress", "version", "state", "digest", "error"], versions)
