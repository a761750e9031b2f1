"""A server's models, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from logitsieve.v1 import decoder_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a request may hold."""

    max_rows: int
    max_k: int  # answers, targets or beams a row
    max_samples: int  # draws a row
    max_constraint_ids: int  # in all constraints together
    max_request_bytes: int


@dataclass(frozen=True, kw_only=True)
class PointInfo:
    """A measured operating point: a head and its knobs."""

    head: str
    knobs: Mapping[str, float]
    rows: int  # of the timed batch
    us_per_row: float  # on the builder's machine
    precision_at: Mapping[int, float]  # k -> P@k
    mass_kept: float
    proven: bool


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A version of a model; a list of models has no `points`."""

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
    points: tuple[PointInfo, ...]


def model_info(model: pb.Model) -> ModelInfo:
    """Convert a message."""
    limits = model.limits
    same = ("name", "version", "error", "digest", "dim", "vocabulary_id")
    measured = ("rows", "us_per_row", "mass_kept", "proven")
    return ModelInfo(
        **{name: getattr(model, name) for name in same},
        state=pb.State.Name(model.state).removeprefix("STATE_").lower(),
        aliases=tuple(model.aliases),
        vocab_size=model.vocabulary,
        limits=Limits(**{each.name: getattr(limits, each.name) for each in fields(Limits)}),
        heads=tuple(model.heads),
        points=tuple(
            PointInfo(
                head=point.head.name,
                knobs=dict(point.head.knobs),
                precision_at=dict(point.precision_at),
                **{name: getattr(point, name) for name in measured},
            )
            for point in model.points
        ),
    )
