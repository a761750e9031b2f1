"""GRPCInferenceService on the admin port: Triton's way to load and to unload a model."""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.kserve.service import SERVICE, serialized
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.admin_service import AdminService
from logitsieve.server.rpc.handlers import Context, parse, unary
from logitsieve.v1 import decoder_pb2 as pb


class KserveAdmin:
    """Hands both over to our Admin service; `model_name` is "name@version"."""

    def __init__(self, admin: AdminService, metrics: Metrics) -> None:
        self._admin, self._metrics = admin, metrics

    def handler(self) -> grpc.GenericRpcHandler:
        """Both methods, over raw bytes."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "RepositoryModelLoad": unary("RepositoryModelLoad", self.load, self._metrics),
                "RepositoryModelUnload": unary("RepositoryModelUnload", self.unload, self._metrics),
            },
        )

    async def load(self, message: bytes, context: Context, call: Call) -> bytes:
        """Returns when the version answers."""
        request = parse(kserve.RepositoryModelLoadRequest, message)
        for parameter in request.parameters:  # a configuration or files of Triton's
            raise InvalidRequest("parameters", repr(parameter[:100]), "none")
        name, version = _named(request)
        ours = pb.LoadRequest(name=name, version=version)
        await self._admin.load(ours.SerializeToString(), context, call)
        return serialized(kserve.RepositoryModelLoadResponse())

    async def unload(self, message: bytes, context: Context, call: Call) -> bytes:
        """Returns at once: it is closed when the last request that it answers is done."""
        request = parse(kserve.RepositoryModelUnloadRequest, message)
        name, version = _named(request)
        ours = pb.UnloadRequest(name=name, version=version)
        await self._admin.unload(ours.SerializeToString(), context, call)
        return serialized(kserve.RepositoryModelUnloadResponse())


def _named(request: Any) -> tuple[str, str]:
    if request.repository_name:
        raise InvalidRequest("repository_name", repr(request.repository_name[:100]), "nothing")
    name, at, version = request.model_name.partition("@")
    if not at:
        raise InvalidRequest("model_name", repr(name[:100]), "name@version")
    return name, version
