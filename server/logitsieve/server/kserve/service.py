"""GRPCInferenceService on the public port: what is loaded, and ModelInfer.

Requests and replies travel as our own messages through the same path as those of the Decoder
service: kserve_infer.py translates.
"""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.errors import InvalidRequest, ModelNotFound, PermissionDenied
from logitsieve.server.kserve.infer import TENSORS, to_asked, to_infer_response
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version
from logitsieve.server.rpc.handlers import Behaviour, Context, parse, unary
from logitsieve.server.rpc.stream import Answer

SERVICE = "inference.GRPCInferenceService"
PLATFORM = "logitsieve"
STATES = {
    "available": "READY",
    "loading": "LOADING",
    "unloading": "UNLOADING",
    "failed": "UNAVAILABLE",
}


class KserveService:
    """What a KServe client needs, without what Triton adds for shared memory and traces."""

    def __init__(self, repository: Repository, answer: Answer, metrics: Metrics) -> None:
        self._repository, self._answer, self._metrics = repository, answer, metrics

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods that are built, over raw bytes; the others are UNIMPLEMENTED."""
        behaviours: dict[str, Behaviour] = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ServerMetadata": self.server_metadata,
            "ModelReady": self.model_ready,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.on_another_port,
            "RepositoryModelUnload": self.on_another_port,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {name: unary(name, behaviour, self._metrics) for name, behaviour in behaviours.items()},
        )

    async def server_live(self, message: bytes, context: Context, call: Call) -> bytes:
        """Whoever gets an answer knows it."""
        return serialized(kserve.ServerLiveResponse(live=True))

    async def server_ready(self, message: bytes, context: Context, call: Call) -> bytes:
        """Whether anything is loaded."""
        ready = any(version.served is not None for version in self._repository.versions())
        return serialized(kserve.ServerReadyResponse(ready=ready))

    async def server_metadata(self, message: bytes, context: Context, call: Call) -> bytes:
        """Name, version and what is built beyond the protocol."""
        return serialized(
            kserve.ServerMetadataResponse(
                name=PLATFORM, version=version_of(PLATFORM), extensions=["model_repository"]
            )
        )

    async def model_ready(self, message: bytes, context: Context, call: Call) -> bytes:
        """Whether requests for it would be answered; what there is not, is not ready."""
        request = parse(kserve.ModelReadyRequest, message)
        try:
            ready = self._get(request).served is not None
        except ModelNotFound:
            ready = False
        return serialized(kserve.ModelReadyResponse(ready=ready))

    async def model_metadata(self, message: bytes, context: Context, call: Call) -> bytes:
        """Its loaded versions and the tensors of both methods."""
        version = self._get(parse(kserve.ModelMetadataRequest, message))
        if version.served is None:
            raise ModelNotFound(f"name: {version.label} is not loaded: {version.error}", "name")
        call.model = version.name
        dim = version.served.decoder.index.dim
        loaded = [v for v in self._repository.versions() if v.served and v.name == version.name]
        return serialized(
            kserve.ModelMetadataResponse(
                name=version.name,
                versions=[str(v.number) for v in loaded],
                platform=PLATFORM,
                inputs=[tensor.metadata(dim) for tensor in TENSORS["inputs"]],
                outputs=[tensor.metadata(dim) for tensor in TENSORS["outputs"]],
            )
        )

    async def model_infer(self, message: bytes, context: Context, call: Call) -> bytes:
        """ModelInferRequest -> ModelInferResponse, by TopK or Sample."""
        request = parse(kserve.ModelInferRequest, message)
        asked = to_asked(request, label(request.model_name, request.model_version))
        left_s = context.time_remaining()
        if asked.timeout_s:
            left_s = asked.timeout_s if left_s is None else min(left_s, asked.timeout_s)
        response = await self._answer(asked.method, asked.request, call, left_s)
        return serialized(to_infer_response(asked, response, request.id))

    async def repository_index(self, message: bytes, context: Context, call: Call) -> bytes:
        """Every version and its state; `ready` leaves out those that do not answer."""
        request = parse(kserve.RepositoryIndexRequest, message)
        if request.repository_name:
            raise InvalidRequest("repository_name", repr(request.repository_name[:100]), "nothing")
        return serialized(
            kserve.RepositoryIndexResponse(
                models=[
                    kserve.RepositoryIndexResponse.ModelIndex(
                        name=version.name,
                        version=str(version.number),
                        state=STATES[version.state],
                        reason=version.error,
                    )
                    for version in self._repository.versions()
                    if version.served is not None or not request.ready
                ]
            )
        )

    async def on_another_port(self, message: bytes, context: Context, call: Call) -> bytes:
        """What changes the repository."""
        raise PermissionDenied("models are loaded and unloaded on the admin port")

    def _get(self, request: Any) -> Version:
        return self._repository.get(label(request.name, request.version))


def label(name: str, version: str) -> str:
    """As our own requests name a model; `name` may be one of ours that names the version."""
    return f"{name}@{version}" if version else name


def serialized(message: Any) -> bytes:
    """The bytes of a message."""
    return bytes(message.SerializeToString())
