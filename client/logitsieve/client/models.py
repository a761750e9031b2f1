"""What a server says about the models it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logitsieve.v1 import decoder_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may hold."""

    max_rows: int
    max_k: int  # answers, targets or beams a row
    max_samples: int  # draws a row
    max_constraint_ids: int  # in all constraints together
    max_request_bytes: int


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A measured setting of a head: one of those that AUTO chooses among."""

    head: str
    knobs: Mapping[str, float]
    rows: int  # batch rows of the timing
    us_per_row: float  # on the server's machine, or until it has measured, on the builder's
    precision_at: Mapping[int, float]  # k -> P@k
    mass_kept: float
    proven: bool


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One version of a model; `points` are only given for a model asked by name."""

    name: str
    version: str
    state: str  # "loading", "available", "unloading" or "failed"
    error: str  # why it failed
    digest: str
    aliases: tuple[str, ...]
    vocab_size: int
    dim: int
    vocabulary_id: str
    limits: Limits
    heads: tuple[str, ...]
    points: tuple[OperatingPoint, ...]


class Listing:
    """The answers to Models.List, page by page: send `request` until it is `whole`."""

    def __init__(self) -> None:
        self.request = pb.ListModelsRequest()
        self.found: list[ModelInfo] = []
        self.whole = False

    def add(self, page: pb.ListModelsResponse) -> None:
        """The answer to `request`."""
        self.found += [model_info(model) for model in page.models]
        self.request.page_token = page.next_page_token
        self.whole = not page.next_page_token


def model_info(model: pb.Model) -> ModelInfo:
    """The message as a plain value."""
    limits = model.limits
    return ModelInfo(
        name=model.name,
        version=model.version,
        state=pb.State.Name(model.state).removeprefix("STATE_").lower(),
        error=model.error,
        digest=model.digest,
        aliases=tuple(model.aliases),
        vocab_size=model.vocabulary,
        dim=model.dim,
        vocabulary_id=model.vocabulary_id,
        limits=Limits(
            max_rows=limits.max_rows,
            max_k=limits.max_k,
            max_samples=limits.max_samples,
            max_constraint_ids=limits.max_constraint_ids,
            max_request_bytes=limits.max_request_bytes,
        ),
        heads=tuple(model.heads),
        points=tuple(_point(point) for point in model.points),
    )


def _point(point: pb.OperatingPoint) -> OperatingPoint:
    return OperatingPoint(
        head=point.head.name,
        knobs=dict(point.head.knobs),
        rows=point.rows,
        us_per_row=point.us_per_row,
        precision_at=dict(point.precision_at),
        mass_kept=point.mass_kept,
        proven=point.proven,
    )
