"""Deploying a folder of models: shards by Ray Serve, an ingress on each node that asks for one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from logitsieve.api.errors import InvalidRequest, LogitsieveError, Unavailable
from logitsieve.decoding.sharded import Missing
from logitsieve.ray.building.cluster import require_reached
from logitsieve.ray.serving.ingress import Ingress, IngressOptions, IngressState
from logitsieve.ray.serving.shards import (
    ENVIRONMENT,
    PREFIX,
    ShardOptions,
    app_names,
    read_manifest,
    run_shards,
    running,
)
from logitsieve.ray.serving.splitting import split_models
from logitsieve.server.config import ServeConfig
from logitsieve.server.models.repository import Repository
from ray import serve
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

log = logging.getLogger(__name__)

ADDRESSES = "auto (the cluster of this machine), or HOST:PORT of a head node"
NAMESPACE = "logitsieve"
INGRESS = "ingress"  # and its number
STATE_S = 10.0  # that an ingress may take to say what it answers for


class ShardState(NamedTuple):
    """A shard as Ray Serve runs it."""

    app: str
    status: str
    replicas: int  # that run
    message: str


@dataclass(frozen=True)
class Status:
    """A deployment; an ingress that does not answer has no state."""

    ingresses: dict[str, IngressState | None]
    shards: list[ShardState]


def connect(address: str) -> None:
    """Connect this process to a cluster, unless it is: "auto", that of this machine, or HOST:PORT.

    InvalidRequest where there is none.
    """
    if ray.is_initialized():
        return
    if address != "auto":
        require_reached("address", address, ADDRESSES)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest("address", f"{address} ({reason})", ADDRESSES) from error


def deploy(
    models: Path | str,
    *,
    shards: int = 0,
    replicas: int = 1,
    autoscale: int = 0,
    cpus: float = 1.0,
    serve_on: str = "",
    missing: Missing = "refuse",
    patience_s: float = 1.0,
    server: ServeConfig | None = None,
) -> Status:
    """Serve the indexes of `models` (<name>/<version>) on the cluster that Ray is connected to.

    Again with another folder's contents, it brings what runs to that: new versions answer as soon
    as all their shards do, and versions without a folder are closed.

    `shards`: indexes in one piece are split into so many first, in the folder `models`-`shards`; 0
    takes indexes as they are, and one in one piece is answered by the ingress itself. Each shard
    has `replicas` processes, up to `autoscale` under load if that is not 0, with `cpus` each.
    `serve_on` names a resource of nodes: each node that has it gets an ingress; without a name one
    is put on this node. A shard is waited for `patience_s` seconds; requests are then refused, or
    answered without it (`missing` "answer"). `server` are the options of every ingress; its ports
    must not be 0, as a restarted ingress listens on the same.

    InvalidRequest names an argument, Unavailable says what could not be run.
    """
    folder = Path(models).resolve()
    if not 0 < patience_s <= 3600:
        raise InvalidRequest("patience_s", patience_s, "a number above 0, at most 3600")
    if missing not in ("refuse", "answer"):
        raise InvalidRequest("missing", repr(missing), "'refuse' or 'answer'")
    config = server or ServeConfig()
    for port in ("port", "metrics_port", "admin_port")[: 3 if config.admin else 2]:
        if getattr(config, port) == 0:
            raise InvalidRequest(port, 0, "a port of its own: a restarted ingress listens there")
    run = ShardOptions(
        replicas=replicas,
        autoscale=autoscale,
        cpus=cpus,
        threads=config.threads,
        verify=config.verify,
        kernel_cache=config.kernel_cache,
    )
    nodes = _nodes(serve_on)
    if shards:
        folder = split_models(folder, shards)
    options = IngressOptions(
        server=replace(config, models=folder), shards=run, patience_s=patience_s, missing=missing
    )
    before = _options_before()
    if before is not None and replace(before, shards=run) != options:
        allowed = "those it was started with, but for the shards': `logitsieve ray down` ends it"
        raise InvalidRequest("options", "others than those of the ingress that runs", allowed)
    serve.start(proxy_location="Disabled")
    same = before is not None and before.shards == run
    wanted = list(_run_versions(options.server, run, same))
    ingresses = [_ingress(number, options, serve_on) for number in range(1, nodes + 1)]
    errors = list[str]()
    for ingress in ingresses:
        with _named("ingress"):
            errors += ray.get(ingress.update.remote(wanted, run))
    status = status_of()
    _delete_unused(status)
    if errors:
        raise Unavailable("; ".join(sorted(set(errors))), "version")
    return status


def status_of() -> Status:
    """What runs on the cluster that Ray is connected to."""
    ingresses = dict[str, IngressState | None]()
    for name in _names():
        try:
            actor = ray.get_actor(name, NAMESPACE)
            ingresses[name] = ray.get(actor.state.remote(), timeout=STATE_S)
        except (RayActorError, ValueError, TimeoutError):
            ingresses[name] = None
    shards = []
    for name, app in sorted(_apps().items()):
        running = [d.replica_states.get("RUNNING", 0) for d in app.deployments.values()]
        message = app.message or "; ".join(d.message for d in app.deployments.values())
        shards.append(ShardState(name, str(app.status.value), sum(running), message))
    return Status(ingresses, shards)


def remove() -> None:
    """End the ingresses, after what is in flight, and the shards. Other things on Ray stay."""
    for name in _names():
        actor = ray.get_actor(name, NAMESPACE)
        try:
            ray.get(actor.stop.remote(), timeout=STATE_S + 60)
        except (RayActorError, TimeoutError):
            log.warning("%s did not stop by itself", name)
        ray.kill(actor)
    _delete(list(_apps()))


def _nodes(resource: str) -> int:
    """How many nodes are to have an ingress; InvalidRequest if there is none."""
    if not resource:
        return 1
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    count = len([resources for resources in alive if resources.get(resource, 0) >= 1])
    if not count:
        allowed = "a resource that a node has: ray start --resources '{\"NAME\": 1}'"
        raise InvalidRequest("serve_on", repr(resource), allowed)
    return count


def _options_before() -> IngressOptions | None:
    """Those of the ingresses that run already."""
    for name in _names():
        with _named(name):
            before: IngressOptions = ray.get(ray.get_actor(name, NAMESPACE).options.remote())
        return before
    return None


def _run_versions(
    config: ServeConfig, run: ShardOptions, same: bool
) -> Iterator[tuple[str, int, str]]:
    """Run the shards of all versions; (name, version, digest) of those that can be read.

    `same`: what runs has these options already.
    """
    for name, number in Repository(config).find():
        path = config.models / name / str(number)
        try:
            manifest = read_manifest(path)
            if manifest.shards and not (same and running(app_names(path, manifest))):
                run_shards(path, manifest, run)
        except LogitsieveError as error:  # an ingress says it of the version, and serves the others
            log.error("%s@%d: %s", name, number, error)
            yield name, number, ""
        else:
            yield name, number, manifest.digest


def _ingress(number: int, options: IngressOptions, serve_on: str) -> Any:
    """The actor of this number, which may run already."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    place: dict[str, Any] = (
        {"resources": {serve_on: 1}} if serve_on else {"scheduling_strategy": here}
    )
    return (
        ray.remote(Ingress)
        .options(
            name=f"{INGRESS}-{number}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=8,
            num_cpus=0,
            runtime_env={"env_vars": ENVIRONMENT},
            **place,
        )
        .remote(options)
    )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Unavailable instead of Ray's errors about an actor."""
    try:
        yield
    except RayActorError as error:
        cause = str(error).strip().splitlines()[-1]
        raise Unavailable(f"{what}: {cause}", what) from error


def _delete_unused(status: Status) -> None:
    """End shards from which no ingress answers."""
    states = [state for state in status.ingresses.values() if state is not None]
    used = {app for state in states for version in state.versions for app in version.apps}
    if len(states) < len(status.ingresses):
        return  # one that starts again may need them
    _delete([shard.app for shard in status.shards if shard.app not in used])


def _delete(apps: list[str]) -> None:
    """End applications side by side: Serve takes seconds for each."""
    if apps:
        with ThreadPoolExecutor(len(apps)) as pool:
            list(pool.map(serve.delete, apps))


def _names() -> list[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        each["name"]
        for each in actors
        if each["namespace"] == NAMESPACE and each["name"].startswith(f"{INGRESS}-")
    )


def _apps() -> dict[str, Any]:
    """The applications of shards; none where Ray Serve does not run."""
    applications = serve.status().applications
    return {name: app for name, app in applications.items() if name.startswith(f"{PREFIX}-")}
