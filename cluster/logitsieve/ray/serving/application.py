"""An application for those who want everything in Ray Serve: the unary calls of Decoder behind its
gRPC proxy. docs/ray.md says what that costs and what it lacks.

    serve run logitsieve.ray.serving.application:application models=/srv/models-4
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from google.protobuf.message import Message

from logitsieve.api.errors import InvalidRequest, Unavailable
from logitsieve.decoding.sharded import Missing
from logitsieve.ray.serving.ingress import IngressOptions, repository_of
from logitsieve.ray.serving.metrics import ShardMetrics
from logitsieve.ray.serving.shards import ENVIRONMENT, ShardOptions
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.precision.shadow import Shadow
from logitsieve.server.rpc.decoder_service import DecoderService
from logitsieve.server.rpc.methods import METHODS, Method
from logitsieve.server.rpc.status import to_status
from logitsieve.server.scheduling.executor import Executor
from logitsieve.utils.options import no_progress
from ray import serve

ARGUMENTS = ("models", "missing", "replicas")


class NoDeadline:
    """The context of a call, as far as Serve's proxy has one: it does not hand deadlines on."""

    def time_remaining(self) -> None:
        return None


class Decoder:
    """The deployment: methods are named as the calls."""

    def __init__(self, options: IngressOptions) -> None:
        _, config, repository = repository_of(options, ShardMetrics())
        shadow = Shadow(0.0, 0.0, judged=lambda *_: None, lost=lambda *_: None)
        with ThreadPoolExecutor(1) as apart:  # handles of shards are not for an event loop
            for name, number in repository.find():
                apart.submit(repository.load, name, number, no_progress).result()
        if not any(version.served for version in repository.versions()):
            errors = "; ".join(version.error for version in repository.versions())
            raise Unavailable(f"models: none could be loaded: {errors}", "models")
        self._service = DecoderService(config, repository, Executor(config), Metrics(), shadow)

    async def TopK(self, request: Any, grpc_context: Any = None) -> Message:
        return await self._answer(METHODS["top_k"], request, grpc_context)

    async def BeamStep(self, request: Any, grpc_context: Any = None) -> Message:
        return await self._answer(METHODS["beam_step"], request, grpc_context)

    async def Sample(self, request: Any, grpc_context: Any = None) -> Message:
        return await self._answer(METHODS["sample"], request, grpc_context)

    async def Score(self, request: Any, grpc_context: Any = None) -> Message:
        return await self._answer(METHODS["score"], request, grpc_context)

    async def _answer(self, method: Method, request: Any, context: Any) -> Message:
        rpc = method.rpc
        try:
            data = await self._service.answer(method, request, NoDeadline(), Call(rpc.name))
        except Exception as error:  # the boundary: whatever it is, the client must hear of it
            if context is not None:
                status = to_status(error)
                context.set_code(status.code)
                context.set_details(status.error.message)
                context.set_trailing_metadata(list(status.trailer))
            raise
        response: Message = rpc.response.FromString(data)
        return response


def application(arguments: Mapping[str, str]) -> serve.Application:
    """The application over the folder `models`; `missing` and `replicas` as `logitsieve ray up`."""
    if wrong := sorted(arguments.keys() - set(ARGUMENTS)):
        raise InvalidRequest(wrong[0], arguments[wrong[0]], ", ".join(ARGUMENTS))
    if "models" not in arguments:
        raise InvalidRequest("models", "nothing", "the folder of indexes: models=FOLDER")
    missing, replicas = arguments.get("missing", "refuse"), arguments.get("replicas", "1")
    if missing not in get_args(Missing):
        raise InvalidRequest("missing", repr(missing), "'refuse' or 'answer'")
    if not replicas.isdecimal():
        raise InvalidRequest("replicas", repr(replicas), "an integer >= 1")
    options = IngressOptions(
        server=replace(ServeConfig(), models=Path(arguments["models"]).resolve()),
        shards=ShardOptions(replicas=int(replicas)),
        patience_s=1.0,
        missing=cast("Missing", missing),
    )
    actor = {"num_cpus": 0, "runtime_env": {"env_vars": ENVIRONMENT}}
    deployment = serve.deployment(
        Decoder, name="decoder", ray_actor_options=actor, max_ongoing_requests=256
    )
    return deployment.bind(options)
