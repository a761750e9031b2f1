"""The shards of a version as Ray Serve runs them: an application for each, named by its digest.

Equal bytes have equal names, so a version is deployed once, whoever asks for it, and another one of
the same number lies beside it until nothing answers from it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from logitsieve.api.errors import InvalidRequest, Unavailable
from logitsieve.index.manifest import Manifest
from logitsieve.index.split import shard_folders
from logitsieve.ray.serving.replica import ShardReplica
from ray import serve
from ray.serve.schema import ApplicationStatus, LoggingConfig

PREFIX = "logitsieve-shard"
DEPLOYMENT = "shard"
ONGOING = 2  # calls of a replica for each of its threads, on the way or computed

# Messages of a shard have no limit of their own: the server bounds what a request may be. Calls are
# computed in threads, so they need no event loop of their own.
ENVIRONMENT = {
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """How each shard is run; InvalidRequest names what makes no sense."""

    replicas: int = 1  # processes that answer for a shard
    cpus: float = 1.0  # that Ray reserves for a replica
    threads: int = 1  # calls that a replica computes at a time
    verify: Literal["full", "sizes"] = "full"
    kernel_cache: Path | None = None

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or self.replicas < 1:
            raise InvalidRequest("replicas", self.replicas, "an integer >= 1")
        if not 0 <= self.cpus < float("inf"):
            raise InvalidRequest("cpus", self.cpus, "a number >= 0")


def app_names(version: Path, manifests: Sequence[Manifest]) -> list[str]:
    """The applications of a version's shards, in their order."""
    model, number, of = version.parent.name, version.name, len(manifests)
    return [
        f"{PREFIX}-{model}-{number}-{shard}-of-{of}-{manifest.digest[:12]}"
        for shard, manifest in enumerate(manifests, start=1)
    ]


def run_shards(version: Path, names: Sequence[str], options: ShardOptions) -> None:
    """Run the shards of a version, and return when all are ready.

    Shards that run already get these options: only what differs is changed. Unavailable says why
    Ray Serve cannot run them.
    """
    targets = [
        serve.RunTarget(target=_application(folder, options), name=name, route_prefix=None)
        for folder, name in zip(shard_folders(version), names, strict=True)
    ]
    try:
        serve.run_many(targets)
    except RuntimeError as error:
        raise Unavailable(f"version: {version}: {error}", "version") from error


def running(names: Sequence[str]) -> bool:
    """Whether all of these applications run."""
    applications = serve.status().applications
    return all(
        name in applications and applications[name].status == ApplicationStatus.RUNNING
        for name in names
    )


def handle_of(name: str) -> Any:
    """The handle of a shard's replicas. Arguments travel by gRPC, not through Ray's object store:
    for some kilobytes that takes half the time.
    """
    handle = serve.get_deployment_handle(DEPLOYMENT, app_name=name)
    return handle.options(
        _by_reference=False, request_serialization="pickle", response_serialization="pickle"
    )


def _application(path: Path, options: ShardOptions) -> serve.Application:
    actor = {"num_cpus": options.cpus, "runtime_env": {"env_vars": ENVIRONMENT}}
    deployment = serve.deployment(
        ShardReplica,
        name=DEPLOYMENT,
        num_replicas=options.replicas,
        max_surge_percent=100,
        ray_actor_options=actor,
        max_ongoing_requests=ONGOING * options.threads,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=5,
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    return deployment.bind(str(path), options.threads, options.verify, options.kernel_cache)
