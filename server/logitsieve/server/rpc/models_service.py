"""The Models service: what is loaded, what failed, and what may be asked of it."""

from __future__ import annotations

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import State, Version
from logitsieve.server.rpc.handlers import Context, parse, unary
from logitsieve.v1 import decoder_pb2 as pb

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

STATES: dict[State, pb.State] = {
    "loading": pb.STATE_LOADING,
    "available": pb.STATE_AVAILABLE,
    "unloading": pb.STATE_UNLOADING,
    "failed": pb.STATE_FAILED,
}


class ModelsService:
    """Read-only view of the repository."""

    def __init__(
        self, config: ServeConfig, repository: Repository, metrics: Metrics, most_bytes: int
    ) -> None:
        """`most_bytes`: of a request, as the port was told when it began to listen."""
        self._config = config
        self._repository = repository
        self._metrics = metrics
        self._most_bytes = most_bytes

    def handler(self) -> grpc.GenericRpcHandler:
        """All methods of the service, over raw bytes."""
        return grpc.method_handlers_generic_handler(
            "logitsieve.v1.Models",
            {
                "List": unary("List", self.list_models, self._metrics),
                "Get": unary("Get", self.get_model, self._metrics),
            },
        )

    async def list_models(self, message: bytes, context: Context, call: Call) -> bytes:
        """ListModelsRequest -> ListModelsResponse; a page's token is the last label on it."""
        request = parse(pb.ListModelsRequest, message)
        size = min(request.page_size or PAGE_SIZE, MAX_PAGE_SIZE)
        versions = self._repository.versions()
        start = 0
        if request.page_token:
            labels = [version.label for version in versions]
            if request.page_token not in labels:
                raise InvalidRequest("page_token", request.page_token, "a next_page_token")
            start = labels.index(request.page_token) + 1
        page = versions[start : start + size]
        more = start + size < len(versions)
        response = pb.ListModelsResponse(
            models=[self.describe(version) for version in page],
            next_page_token=page[-1].label if more else "",
        )
        return response.SerializeToString()

    async def get_model(self, message: bytes, context: Context, call: Call) -> bytes:
        """GetModelRequest -> Model, its operating points included."""
        request = parse(pb.GetModelRequest, message)
        version = self._repository.get(request.model)
        model = self.describe(version)
        if version.served is not None:
            call.model = version.name
            model.points.extend(version.served.points)
        return model.SerializeToString()

    def describe(self, version: Version) -> pb.Model:
        """A version as the service shows it, without points."""
        model = to_model(version, self._repository.aliases(version), self._config)
        limits = model.limits
        limits.max_request_bytes = min(limits.max_request_bytes, self._most_bytes)
        return model


def to_model(version: Version, aliases: list[str], config: ServeConfig) -> pb.Model:
    """A version as the Models service shows it, without points."""
    model = pb.Model(
        name=version.name,
        version=str(version.number),
        state=STATES[version.state],
        error=version.error,
        aliases=aliases,
    )
    if version.served is None:
        return model
    index = version.served.decoder.index
    model.digest = index.digest
    model.vocabulary, model.dim = index.vocab_size, index.dim
    if index.manifest.vocabulary is not None:
        model.vocabulary_id = index.manifest.vocabulary.sha256
    model.heads.extend(index.heads)
    model.limits.max_rows = config.max_rows
    model.limits.max_k = min(config.max_k, index.vocab_size)
    model.limits.max_samples = config.max_samples
    model.limits.max_constraint_ids = config.max_constraint_ids
    model.limits.max_request_bytes = config.max_message_bytes(index.dim)
    return model
