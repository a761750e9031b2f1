"""Shards on Ray Serve. Each is an application named by its digest, so that old ones run on."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from logitsieve.api.errors import DeadlineExceeded, InternalError, LogitsieveError, Unavailable
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index.manifest import Manifest
from logitsieve.index.split import shard_folders
from logitsieve.ray import RayOptions
from logitsieve.server.config import ServeConfig
from logitsieve.utils.deadline import ending_by
from ray import serve
from ray.serve.schema import ApplicationStatus, LoggingConfig

log = logging.getLogger(__name__)

PREFIX = "logitsieve-shard"
DEPLOYMENT = "shard"
ONGOING = 2  # calls of a replica per thread

# Sizes are limited by the server. Replicas compute in threads, and need no other event loop.
ENVIRONMENT = {
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}

TOO_LATE = "the time of a call was over before its replica could compute it"


class ShardReplica:
    """A process with a warm shard, which computes `threads` calls at a time."""

    def __init__(
        self, path: str, threads: int, verify: Literal["full", "sizes"], kernel_cache: Path | None
    ) -> None:
        self._decoder = LocalDecoder(open_index(path, verify=verify, kernel_cache=kernel_cache))
        self._decoder.warm()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="logitsieve-shard")

    async def digest(self) -> str:
        return self._decoder.index.digest

    async def ask(
        self, method: str, args: tuple[Any, ...], options: Mapping[str, Any], left_s: float
    ) -> Any:
        deadline = monotonic() + left_s
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._answer, method, args, options, deadline)

    def _answer(
        self, method: str, args: tuple[Any, ...], options: Mapping[str, Any], deadline: float
    ) -> Any:
        if monotonic() >= deadline:
            return DeadlineExceeded(TOO_LATE)
        try:
            with ending_by(deadline):
                return getattr(self._decoder, method)(*args, **options)
        except LogitsieveError as error:
            return error
        except Exception as error:
            log.exception("%s failed", method)
            return InternalError(f"a shard: {type(error).__name__}: {error}")


def app_names(version: Path, manifests: Sequence[Manifest]) -> list[str]:
    model, number, of = version.parent.name, version.name, len(manifests)
    return [
        f"{PREFIX}-{model}-{number}-{shard}-of-{of}-{manifest.digest[:12]}"
        for shard, manifest in enumerate(manifests, start=1)
    ]


def run_shards(
    version: Path, names: Sequence[str], config: ServeConfig, options: RayOptions
) -> None:
    """Wait until all shards of a version run with these options. Unavailable if they cannot."""
    targets = [
        serve.RunTarget(target=_application(folder, config, options), name=name, route_prefix=None)
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
    """Return a shard's handle that uses gRPC, since Ray's object store takes twice the time."""
    handle = serve.get_deployment_handle(DEPLOYMENT, app_name=name)
    return handle.options(
        _by_reference=False, request_serialization="pickle", response_serialization="pickle"
    )


def _application(path: Path, config: ServeConfig, options: RayOptions) -> serve.Application:
    actor = {"num_cpus": options.cpus, "runtime_env": {"env_vars": ENVIRONMENT}}
    deployment = serve.deployment(
        ShardReplica,
        name=DEPLOYMENT,
        num_replicas=options.replicas,
        max_surge_percent=100,
        ray_actor_options=actor,
        max_ongoing_requests=ONGOING * config.threads,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=5,
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    return deployment.bind(str(path), config.threads, config.verify, config.kernel_cache)
