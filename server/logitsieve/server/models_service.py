"""The Models service: what is loaded, what failed, and what may be asked of it."""

from __future__ import annotations

import grpc

from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.repository import Repository, Version
from logitsieve.server.rpc import Context, parse, unary
from logitsieve.types.errors import InvalidRequest
from logitsieve.v1 import decoder_pb2 as pb

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


class ModelsService:
    """Read-only view of the repository."""

    def __init__(self, config: ServeConfig, repository: Repository, metrics: Metrics) -> None:
        self._config = config
        self._repository = repository
        self._metrics = metrics

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
            models=[self._model(version) for version in page],
            next_page_token=page[-1].label if more else "",
        )
        return response.SerializeToString()

    async def get_model(self, message: bytes, context: Context, call: Call) -> bytes:
        """GetModelRequest -> Model, its operating points included."""
        request = parse(pb.GetModelRequest, message)
        version = self._repository.get(request.model)
        model = self._model(version)
        if version.served is not None:
            call.model = version.name
            model.points.extend(version.served.points)
        return model.SerializeToString()

    def _model(self, version: Version) -> pb.Model:
        return to_model(version, self._repository.aliases(version), self._config)


def to_model(version: Version, aliases: list[str], config: ServeConfig) -> pb.Model:
    """A version as the Models service shows it, without points."""
    model = pb.Model(name=version.name, version=str(version.number), aliases=aliases)
    if version.served is None:
        model.state, model.error = pb.STATE_FAILED, version.error
        return model
    index = version.served.decoder.index
    model.state = pb.STATE_AVAILABLE
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
