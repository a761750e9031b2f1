"""`logitsieve ray`: indexes in shards on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from logitsieve.cli.options import AsJson, flag
from logitsieve.cli.output import print_json, print_table
from logitsieve.server.config import ServeConfig

if TYPE_CHECKING:
    from logitsieve.ray.serving.deployment import Status

Action = Literal["up", "status", "down"]


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    address: str = flag("auto", "The Ray cluster: auto for this node's own, or host:port.")
    replicas: int = flag(1, "Processes that answer for each shard.", min=1)
    cpus: float = flag(1.0, "Processors that Ray reserves for each of them.", min=0)
    serve_on: str = flag(
        "", "Resource of the nodes that get an ingress each; where none is named, this node."
    )
    missing: Literal["refuse", "answer"] = flag(
        "refuse", "What becomes of a request while a shard does not answer."
    )
    patience_s: float = flag(1.0, "Seconds that a shard is waited for.", min=0.001, max=3600)


def command(
    action: Annotated[Action, typer.Argument(help="What to do with the deployment.")],
    server: ServeConfig,
    options: RayOptions,
    as_json: AsJson = False,
) -> None:
    """Serve indexes in shards on Ray, show ingresses and versions, or end all.

    `up` runs every shard of --models and an ingress, a server with the options of `serve`, on each
    node that has the resource --serve-on. Again, it brings what runs to the folder and returns when
    new versions answer: those without a folder are closed. The folder has the same path on every
    node. --threads is for each replica.

    Example: logitsieve ray up --models models-4 --replicas 2 --serve-on ingress
    """
    from logitsieve.ray.serving.deployment import connect, deploy, remove, status_of

    connect(options.address)
    if action == "up":
        status = deploy(
            server.models,
            replicas=options.replicas,
            cpus=options.cpus,
            serve_on=options.serve_on,
            missing=options.missing,
            patience_s=options.patience_s,
            server=server,
        )
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
        ingresses.append((name, state.node, str(state.port), str(state.metrics_port), admin))
        versions += [
            (name, f"{each.name}@{each.number}", each.state, each.digest, each.error)
            for each in state.versions
        ]
    print_table("Ingresses", ["name", "node", "gRPC", "metrics", "admin"], ingresses)
    print_table("Versions", ["ingress", "version", "state", "digest", "error"], versions)
