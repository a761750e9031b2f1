import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from logitsieve.api.errors import InvalidRequest, Unavailable
from logitsieve.ray import RayOptions, building
from logitsieve.ray.ingress import Ingress, IngressState
from logitsieve.ray.shards import ENVIRONMENT, PREFIX
from logitsieve.server.config import ServeConfig
from ray import serve
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

log = logging.getLogger(__name__)

NAMESPACE = "logitsieve"
INGRESS = "ingress"  # names end with a number
STATE_S = 10.0


Status = dict[str, IngressState | None]  # None if an ingress does not answer


def connect(address: str) -> None:
    """Connect to the cluster at "auto" or HOST:PORT, unless connected."""
    if not ray.is_initialized():
        building.connect("address", address)


def deploy(server: ServeConfig, options: RayOptions) -> Status:
    """Serve the versions in `server.model_repository`, or follow changes of that folder.

    Ingresses are servers with the options `server`; they also answer versions without shards.
    InvalidRequest names an option, Unavailable the versions that do not run; others are served.
    """
    config = replace(server, model_repository=server.model_repository.resolve())
    _require_ports(config)
    nodes, before = _nodes(options.serve_on), _names()
    _require_same(config, options, before)
    serve.start(proxy_location="Disabled")
    errors = list[str]()
    for name in [f"{INGRESS}-{number}" for number in range(1, nodes + 1)]:
        with _named(name):
            errors += _brought_up(name, config, options, new=name not in before)
    status = status_of()
    _delete_unused(status)
    if errors:
        raise Unavailable("; ".join(sorted(set(errors))), "version")
    return status


def status_of() -> Status:
    status = Status()
    for name in _names():
        try:
            actor = ray.get_actor(name, NAMESPACE)
            status[name] = ray.get(actor.state.remote(), timeout=STATE_S)
        except (RayActorError, ValueError, GetTimeoutError):
            status[name] = None
    return status


def remove() -> None:
    for name in _names():
        actor = ray.get_actor(name, NAMESPACE)
        try:
            ray.get(actor.stop.remote(), timeout=STATE_S + 60)
        except (RayActorError, GetTimeoutError):
            log.warning("%s did not stop by itself", name)
        ray.kill(actor)
    _delete(_apps())


def _require_ports(config: ServeConfig) -> None:
    for port in ("port", "http_port", "admin_port")[: 3 if config.admin else 2]:
        if getattr(config, port) == 0:
            raise InvalidRequest(port, 0, "a port of its own: a restarted ingress listens there")


def _nodes(resource: str) -> int:
    if not resource:
        return 1
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    count = len([resources for resources in alive if resources.get(resource, 0) >= 1])
    if not count:
        allowed = "a resource that a node has: ray start --resources '{\"NAME\": 1}'"
        raise InvalidRequest("serve_on", repr(resource), allowed)
    return count


def _require_same(config: ServeConfig, options: RayOptions, names: list[str]) -> None:
    for name in names[:1]:
        with _named(name):
            running, before = ray.get(ray.get_actor(name, NAMESPACE).options.remote())
        same = replace(before, replicas=options.replicas, cpus=options.cpus)
        if (running, same) != (config, options):
            allowed = (
                "those it was started with, but for the shards': `logitsieve ray down` ends it"
            )
            raise InvalidRequest("options", "others than those of the ingress that runs", allowed)


def _brought_up(name: str, config: ServeConfig, options: RayOptions, new: bool) -> list[str]:
    actor = _ingress(name, config, options)
    if not new:
        errors: list[str] = ray.get(actor.update.remote(options))
        return errors
    state: IngressState = ray.get(actor.state.remote())  # after its loads
    return [f"{v.name}@{v.number}: {v.error}" for v in state.versions if v.error]


def _ingress(name: str, config: ServeConfig, options: RayOptions) -> Any:
    place: dict[str, Any] = {"resources": {options.serve_on: 1}}
    if not options.serve_on:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        place = {"scheduling_strategy": here}
    actor = ray.remote(Ingress).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=8,
        num_cpus=0,
        runtime_env={"env_vars": ENVIRONMENT},
        **place,
    )
    return actor.remote(config, options)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Raise Unavailable instead of Ray's errors about an actor."""
    try:
        yield
    except RayActorError as error:
        cause = str(error).strip().splitlines()[-1]
        raise Unavailable(f"{what}: {cause}", what) from error


def _delete_unused(status: Status) -> None:
    """End unused shards, unless an ingress restarts and may use them."""
    states = [state for state in status.values() if state is not None]
    used = {app for state in states for version in state.versions for app in version.apps}
    if len(states) == len(status):
        _delete([app for app in _apps() if app not in used])


def _delete(apps: list[str]) -> None:
    """End applications in parallel, since each takes seconds."""
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


def _apps() -> list[str]:
    return [name for name in serve.status().applications if name.startswith(f"{PREFIX}-")]
