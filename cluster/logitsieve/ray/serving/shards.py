"""The shards of a version on Ray Serve: an application for each, named by its digest.

Equal bytes have equal names, so a version is deployed once, and another of the same number runs
next to it until nobody needs the first.
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
ONGOING = 2  # calls of a replica per thread, on the way or computed

# The server limits requests. Calls are computed in threads, without another event loop.
ENVIRONMENT = {
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Options of shards; InvalidRequest names a bad one."""

    replicas: int = 1  # processes for each shard
    cpus: float = 1.0  # reserved for a replica
    threads: int = 1  # calls of a replica at a time
    verify: Literal["full", "sizes"] = "full"
    kernel_cache: Path | None = None

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or self.replicas < 1:
            raise InvalidRequest("replicas", self.replicas, "an integer >= 1")
        if not 0 <= self.cpus < float("inf"):
            raise InvalidRequest("cpus", self.cpus, "a number >= 0")


def app_names(version: Path, manifests: Sequence[Manifest]) -> list[str]:
    """Return the applications of a version's shards, in order."""
    model, number, of = version.parent.name, version.name, len(manifests)
    return [
        f"{PREFIX}-{model}-{number}-{shard}-of-{of}-{manifest.digest[:12]}"
        for shard, manifest in enumerate(manifests, start=1)
    ]


def run_shards(version: Path, names: Sequence[str], options: ShardOptions) -> None:
    """Run the shards of a version, and return when all are ready.

    Running shards get these options. Unavailable says why Ray Serve cannot run them.
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
    applications = serve.status().applications
    return all(
        name in applications and applications[name].status == ApplicationStatus.RUNNING
        for name in names
    )


def handle_of(name: str) -> Any:
    """Return the handle of a shard's replicas, by gRPC: Ray's object store takes twice the time."""
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
