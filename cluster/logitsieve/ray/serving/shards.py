"""The shards of a version as Ray Serve runs them: one application for each, named by its digest.

Equal bytes have equal names, so a version is deployed once, whoever asks for it, and another one of
the same number lies beside it until nothing answers from it any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from logitsieve.api.errors import InvalidRequest, Unavailable
from logitsieve.index.files import read_small
from logitsieve.index.manifest import MANIFEST_FILE, MAX_MANIFEST, SHARDS_FOLDER, Manifest
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

    replicas: int = 1  # processes that answer for a shard; with `autoscale` at least so many
    autoscale: int = 0  # at most so many, by Ray Serve's autoscaler; 0: always `replicas`
    cpus: float = 1.0  # that Ray reserves for a replica
    threads: int = 1  # calls that a replica computes at a time
    verify: Literal["full", "sizes"] = "full"
    kernel_cache: Path | None = None

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or self.replicas < 1:
            raise InvalidRequest("replicas", self.replicas, "an integer >= 1")
        if type(self.autoscale) is not int or (self.autoscale and self.autoscale < self.replicas):
            allowed = f"0, or an integer from {self.replicas}, the replicas, on"
            raise InvalidRequest("autoscale", self.autoscale, allowed)
        if not 0 <= self.cpus < float("inf"):
            raise InvalidRequest("cpus", self.cpus, "a number >= 0")
        if type(self.threads) is not int or self.threads < 1:
            raise InvalidRequest("threads", self.threads, "an integer >= 1")

    @property
    def number(self) -> dict[str, Any]:
        """The number of replicas, as Ray Serve takes it."""
        if not self.autoscale:
            return {"num_replicas": self.replicas}
        scaling = {"min_replicas": self.replicas, "max_replicas": self.autoscale}
        return {"autoscaling_config": {**scaling, "target_ongoing_requests": self.threads}}


def read_manifest(version: Path) -> Manifest:
    """The manifest of an index folder. IndexUnreadable."""
    file = version / MANIFEST_FILE
    return Manifest.from_json(read_small(file, MAX_MANIFEST), file)


def app_names(version: Path, manifest: Manifest) -> list[str]:
    """The applications of a version's shards, in their order."""
    model, number, of = version.parent.name, version.name, len(manifest.shards)
    return [
        f"{PREFIX}-{model}-{number}-{shard}-of-{of}-{entry.digest[:12]}"
        for shard, entry in enumerate(manifest.shards, start=1)
    ]


def run_shards(version: Path, manifest: Manifest, options: ShardOptions) -> None:
    """Run the shards of a version, and return when all are ready.

    Those that run already get these options: only what differs is changed. Unavailable names what
    Ray Serve says of those that cannot be run.
    """
    names = app_names(version, manifest)
    targets = [
        serve.RunTarget(
            target=_application(version / SHARDS_FOLDER / str(number), options),
            name=name,
            route_prefix=None,
        )
        for number, name in enumerate(names, start=1)
    ]
    try:
        serve.run_many(targets)
    except RuntimeError as error:
        raise Unavailable(f"version: {version}: {_why(names) or error}", "version") from error


def _application(path: Path, options: ShardOptions) -> serve.Application:
    actor = {"num_cpus": options.cpus, "runtime_env": {"env_vars": ENVIRONMENT}}
    deployment = serve.deployment(
        ShardReplica,
        name=DEPLOYMENT,
        max_surge_percent=100,
        ray_actor_options=actor,
        max_ongoing_requests=ONGOING * options.threads,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=5,
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
        **options.number,
    )
    return deployment.bind(str(path), options.threads, options.verify, options.kernel_cache)


def _why(names: list[str]) -> str:
    applications = serve.status().applications
    failed = [
        f"{name}: {each.message or deployment.message}"
        for name in names
        if (each := applications.get(name)) is not None
        and each.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
        for deployment in each.deployments.values()
    ]
    return "; ".join(failed)


def running(names: list[str]) -> bool:
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
