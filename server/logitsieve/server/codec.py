"""Messages as arguments, and answers as messages."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import numpy as np

from logitsieve.server.config import ServeConfig
from logitsieve.server.repository import Version
from logitsieve.types.decoder import NORMALIZER_CODES
from logitsieve.types.errors import InvalidRequest, NotBuilt
from logitsieve.types.results import TopKReply
from logitsieve.types.tensors import decode, encode
from logitsieve.v1 import decoder_pb2 as pb

NORMALIZER_NAMES: dict[int, str] = {code: name for name, code in NORMALIZER_CODES.items()}


def to_array(tensor: pb.Tensor, field: str) -> np.ndarray:
    """A tensor as an array [rows, cols] over its bytes; InvalidRequest names `field`."""
    if not tensor.dtype and not tensor.data:
        raise InvalidRequest(field, "nothing", "a tensor [B, D]")
    return decode(tensor.dtype, tensor.rows, tensor.cols, tensor.data, field)


def to_point(target: pb.Target) -> tuple[str, dict[str, float], str]:
    """(head, knobs, normalizer) that a target asks for; NotBuilt names what cannot be asked yet."""
    point = target.WhichOneof("point")
    if point == "min_precision":
        raise NotBuilt("min_precision: the choice by precision is not built", "min_precision")
    head, knobs = "", {}
    if point == "head":
        head, knobs = target.head.name, dict(target.head.knobs)
    elif target.exact:
        head = "exact"
    code = target.normalizer
    normalizer = NORMALIZER_NAMES.get(code, str(code)) if code else ""
    return head, knobs, normalizer


def to_response(reply: TopKReply, queue_ns: int) -> pb.TopKResponse:
    """What the decoder answered, and how long the request waited for it."""
    source = reply.answer
    response = pb.TopKResponse()
    response.CopyFrom(
        _origin(source.model, source.version, source.digest, source.head, *source.knobs.items())
    )
    _put(reply.ids, response.ids)
    _put(reply.logits, response.logits)
    answer = response.answer
    _put(source.exact, answer.exact)
    _put(source.scanned, answer.scanned)
    _put(source.fallback, answer.fallback)
    if source.log_z is not None:
        answer.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[source.normalizer])
        _put(source.log_z, answer.log_z)
    answer.queue_ns, answer.compute_ns = queue_ns, source.compute_ns
    return response


@lru_cache(maxsize=256)
def _origin(
    model: str, version: str, digest: str, head: str, *knobs: tuple[str, float]
) -> pb.TopKResponse:
    """The part of a response that all requests for one operating point share."""
    point = pb.Head(name=head, knobs=dict(knobs))
    answer = pb.Answer(model=model, version=version, digest=digest, head=point)
    return pb.TopKResponse(answer=answer)


def _put(array: np.ndarray, tensor: pb.Tensor) -> None:
    # Assigned one by one: a Tensor made apart would be copied into its parent.
    dtype, tensor.rows, tensor.cols, tensor.data = encode(array)
    tensor.dtype = cast("pb.DType", dtype)


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
    model.limits.max_request_bytes = config.max_message_bytes(index.dim)
    return model
