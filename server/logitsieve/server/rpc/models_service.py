"""The Models service: versions, their states and limits."""

from __future__ import annotations

from dataclasses import dataclass

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import Index
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Call
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version
from logitsieve.v1 import decoder_pb2 as pb

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


@dataclass(eq=False)
class ModelsService:
    SERVICE = pb.DESCRIPTOR.services_by_name["Models"]
    config: ServeConfig
    repository: Repository
    most_bytes: int  # of a request on the port

    async def List(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        """Return a page; its token is its last label."""
        size = min(request.page_size or PAGE_SIZE, MAX_PAGE_SIZE)
        versions = self.repository.versions()
        start = 0
        if request.page_token:
            labels = [version.label for version in versions]
            if request.page_token not in labels:
                raise InvalidRequest("page_token", request.page_token, "a next_page_token")
            start = labels.index(request.page_token) + 1
        page = versions[start : start + size]
        more = start + size < len(versions)
        return pb.ListModelsResponse(
            models=[self.describe(version) for version in page],
            next_page_token=page[-1].label if more else "",
        )

    async def Get(self, request: pb.GetModelRequest, call: Call) -> pb.Model:
        version = self.repository.routes.get(request.model)
        model = self.describe(version)
        if version.served is not None:
            call.route(request.model, version.name, str(version.number))
            model.points.extend(version.served.points)
        return model

    def describe(self, version: Version) -> pb.Model:
        config, served = self.config, version.served
        model = pb.Model(
            name=version.name,
            version=str(version.number),
            state=f"STATE_{version.state.upper()}",
            error=version.error,
            aliases=self.repository.routes.aliases_of(version),
        )
        if served is None:
            return model
        index = served.decoder.index
        model.digest = index.digest
        model.vocabulary, model.dim = index.vocab_size, index.dim
        if isinstance(index, Index) and index.manifest.vocabulary is not None:
            model.vocabulary_id = index.manifest.vocabulary.sha256
        model.heads.extend(index.heads)
        limits = model.limits
        limits.max_rows, limits.max_samples = config.max_rows, config.max_samples
        limits.max_k = min(config.max_k, index.vocab_size)
        limits.max_constraint_ids = config.max_constraint_ids
        limits.max_request_bytes = min(config.max_message_bytes(index.dim), self.most_bytes)
        return model
