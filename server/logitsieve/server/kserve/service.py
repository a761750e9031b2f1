"""KServe's GRPCInferenceService; on the admin port, it loads and unloads models."""

from typing import Any

from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.errors import InvalidRequest, ModelNotFound, PermissionDenied
from logitsieve.server.kserve.describe import (
    PLATFORM,
    InferStatistics,
    model_config,
    tensor_metadata,
)
from logitsieve.server.kserve.infer import TENSORS, to_request
from logitsieve.server.metrics import UNKNOWN, Call
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version
from logitsieve.server.rpc.decoder_service import DecoderService
from logitsieve.server.rpc.models_service import AdminService
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.version import __version__

EXTENSIONS = ["model_repository", "model_configuration", "statistics"]
STATES = {
    "available": "READY",
    "loading": "LOADING",
    "unloading": "UNLOADING",
    "failed": "UNAVAILABLE",
}


class KserveService:
    SERVICE = kserve.DESCRIPTOR.services_by_name["GRPCInferenceService"]

    def __init__(self, repository: Repository, decoder: DecoderService) -> None:
        self._repository, self._decoder = repository, decoder
        self._statistics = InferStatistics()

    async def ServerLive(self, request: Any, call: Call) -> Any:
        return kserve.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, call: Call) -> Any:
        ready = any(version.served for version in self._repository.versions())
        return kserve.ServerReadyResponse(ready=ready)

    async def ServerMetadata(self, request: Any, call: Call) -> Any:
        return kserve.ServerMetadataResponse(
            name=PLATFORM, version=__version__, extensions=EXTENSIONS
        )

    async def ModelReady(self, request: Any, call: Call) -> Any:
        try:
            ready = self._get(request).served is not None
        except ModelNotFound:
            ready = False
        return kserve.ModelReadyResponse(ready=ready)

    async def ModelMetadata(self, request: Any, call: Call) -> Any:
        version, dim = self._loaded(request, call)
        loaded = [v for v in self._repository.versions() if v.served and v.name == version.name]
        return kserve.ModelMetadataResponse(
            name=version.name,
            versions=[str(v.number) for v in loaded],
            platform=PLATFORM,
            inputs=[tensor_metadata(kind, dim) for kind in TENSORS["inputs"]],
            outputs=[tensor_metadata(kind, dim) for kind in TENSORS["outputs"]],
        )

    async def ModelConfig(self, request: Any, call: Call) -> Any:
        version, dim = self._loaded(request, call)
        return kserve.ModelConfigResponse(config=model_config(version.name, dim))

    async def ModelStatistics(self, request: Any, call: Call) -> Any:
        """Answer for one version, all of a model if no version is named, or all models."""
        loaded = [version for version in self._repository.versions() if version.served]
        self._statistics.keep(loaded)
        if request.name or request.version:
            named, _ = self._loaded(request, call)
            one = request.version or ":" in request.name
            loaded = [named] if one else [each for each in loaded if each.name == named.name]
        return self._statistics.of(loaded)

    async def ModelInfer(self, request: Any, call: Call) -> bytes:
        model = _label(request.model_name, request.model_version)
        max_rows = self._decoder.config.max_rows
        method, ours, timeout_s, write = to_request(request, model, max_rows)
        call.limit(timeout_s)
        answer = self._decoder.answer(method, ours, call, write)
        del request, ours
        try:
            return await answer
        finally:
            if call.model != UNKNOWN:
                self._statistics.add(call)

    async def RepositoryIndex(self, request: Any, call: Call) -> Any:
        _refuse_repository(request)
        entry = kserve.RepositoryIndexResponse.ModelIndex
        models = [
            entry(name=v.name, version=str(v.number), state=STATES[v.state], reason=v.error)
            for v in self._repository.versions()
            if v.served is not None or not request.ready
        ]
        return kserve.RepositoryIndexResponse(models=models)

    async def RepositoryModelLoad(self, request: Any, call: Call) -> Any:
        raise PermissionDenied("models are loaded and unloaded on the admin port")

    RepositoryModelUnload = RepositoryModelLoad

    def _get(self, request: Any) -> Version:
        return self._repository.routes.get(_label(request.name, request.version))

    def _loaded(self, request: Any, call: Call) -> tuple[Version, int]:
        """Return a version that answers and its hidden size; label the call."""
        version = self._get(request)
        if version.served is None:
            raise ModelNotFound(f"name: {version.label} is not loaded: {version.error}", "name")
        call.route("", version.name, str(version.number))
        return version, version.served.decoder.index.dim


class KserveAdmin:
    SERVICE = KserveService.SERVICE

    def __init__(self, admin: AdminService) -> None:
        self._admin = admin

    async def RepositoryModelLoad(self, request: Any, call: Call) -> Any:
        for parameter in request.parameters:
            raise InvalidRequest("parameters", repr(parameter[:100]), "none")
        name, version = _name_and_version(request)
        await self._admin.Load(pb.LoadRequest(name=name, version=version), call)
        return kserve.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, call: Call) -> Any:
        name, version = _name_and_version(request)
        await self._admin.Unload(pb.UnloadRequest(name=name, version=version), call)
        return kserve.RepositoryModelUnloadResponse()


def _label(name: str, version: str) -> str:
    return f"{name}@{version}" if version else name


def _refuse_repository(request: Any) -> None:
    if request.repository_name:
        raise InvalidRequest("repository_name", repr(request.repository_name[:100]), "nothing")


def _name_and_version(request: Any) -> tuple[str, str]:
    _refuse_repository(request)
    name, at, version = request.model_name.partition("@")
    if not at:
        raise InvalidRequest("model_name", repr(name[:100]), "name@version")
    return name, version
