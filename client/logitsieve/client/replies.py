"""Responses as what the in-process decoder returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from logitsieve.api.decoder import NORMALIZER_CODES
from logitsieve.api.results import Answer, BeamStepReply, SampleReply, ScoreReply, TopKReply
from logitsieve.utils.wire_tensors import decode
from logitsieve.v1 import decoder_pb2 as pb

NORMALIZER_NAMES = {code: name for name, code in NORMALIZER_CODES.items()}

R = TypeVar("R", TopKReply, ScoreReply, SampleReply, BeamStepReply)


def to_reply(kind: type[R], response: Any) -> R:
    """A reply's arrays are named as the fields of its message, and its answer comes last."""
    arrays = (to_array(getattr(response, name), name) for name in kind._fields[:-1])
    make: Callable[..., R] = kind
    return make(*arrays, to_answer(response.answer))


def to_array(tensor: pb.Tensor, field: str) -> np.ndarray:
    """A message as an array [rows, cols] that the caller owns."""
    return decode(tensor.dtype, tensor.rows, tensor.cols, tensor.data, field).copy()


def to_answer(answer: pb.Answer) -> Answer:
    """How a reply was made."""

    def column(name: str) -> Any:
        return to_array(getattr(answer, name), name)[:, 0]

    def column_if_set(name: str) -> Any:
        return column(name) if answer.HasField(name) else None

    return Answer(
        model=answer.model,
        version=answer.version,
        digest=answer.digest,
        head=answer.head.name,
        knobs=dict(answer.head.knobs),
        exact=column("exact"),
        scanned=column("scanned"),
        fallback=column("fallback"),
        normalizer=NORMALIZER_NAMES.get(answer.normalizer, ""),
        log_z=column_if_set("log_z"),
        log_z_low=column_if_set("log_z_low"),
        log_z_high=column_if_set("log_z_high"),
        log_z_error=column_if_set("log_z_error"),
        queue_ns=answer.queue_ns,
        compute_ns=answer.compute_ns,
    )
