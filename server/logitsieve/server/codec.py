"""Messages as arguments, and answers as messages."""

from __future__ import annotations

from typing import cast

import numpy as np

from logitsieve.decoding.point import Point
from logitsieve.types.decoder import AUTO, NORMALIZER_CODES, Aim, asked_precision
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import TopKReply
from logitsieve.types.tensors import decode
from logitsieve.v1 import decoder_pb2 as pb

# What results.py promises of every reply's arrays: they need not be asked.
INT32, FLOAT32, BOOL = pb.DTYPE_INT32, pb.DTYPE_FLOAT32, pb.DTYPE_BOOL
NORMALIZER_NAMES: dict[int, str] = {code: name for name, code in NORMALIZER_CODES.items()}


def to_array(tensor: pb.Tensor, field: str) -> np.ndarray:
    """A tensor as an array [rows, cols] over its bytes; InvalidRequest names `field`."""
    dtype, data = tensor.dtype, tensor.data  # read once: every reading copies the bytes
    if not dtype and not data:
        raise InvalidRequest(field, "nothing", "a tensor [B, D]")
    return decode(dtype, tensor.rows, tensor.cols, data, field)


def to_aim(target: pb.Target) -> Aim:
    """InvalidRequest names the field that holds no such value."""
    code = target.normalizer
    normalizer = NORMALIZER_NAMES.get(code, str(code)) if code else ""
    point = target.WhichOneof("point")
    if point is None:
        return Aim(True, None, "", (), normalizer)
    if point == "head":
        head, knobs = target.head.name, target.head.knobs
        if head != AUTO and (head or knobs):
            return Aim(False, None, head, tuple(sorted(knobs.items())), normalizer)
        return Aim(True, asked_precision(head, dict(knobs), None, False), "", (), normalizer)
    precision = target.min_precision if point == "min_precision" else None
    return Aim(True, asked_precision("", None, precision, target.exact), "", (), normalizer)


def to_response(reply: TopKReply, queue_ns: int) -> pb.TopKResponse:
    """What the decoder answered and how long the request waited; `to_origin` has the rest."""
    ids, logits, source = reply
    rows, k = ids.shape
    response = pb.TopKResponse()
    _put(response.ids, INT32, rows, k, ids)
    _put(response.logits, FLOAT32, rows, k, logits)
    answer = response.answer
    _put(answer.exact, BOOL, rows, 1, source.exact)
    _put(answer.scanned, INT32, rows, 1, source.scanned)
    _put(answer.fallback, BOOL, rows, 1, source.fallback)
    if source.log_z is not None:
        _put(answer.log_z, FLOAT32, rows, 1, source.log_z)
    answer.queue_ns, answer.compute_ns = queue_ns, source.compute_ns
    return response


def to_origin(point: Point) -> pb.TopKResponse:
    """The part of a response that all answers of one operating point share."""
    answer = pb.Answer(model=point.model, version=point.version, digest=point.digest)
    answer.head.CopyFrom(pb.Head(name=point.head, knobs=point.knobs))
    if point.normalizer:
        answer.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[point.normalizer])
    return pb.TopKResponse(answer=answer)


def _put(tensor: pb.Tensor, dtype: pb.DType, rows: int, cols: int, array: np.ndarray) -> None:
    # Assigned one by one: a Tensor made apart would be copied into its parent.
    tensor.dtype, tensor.rows, tensor.cols, tensor.data = dtype, rows, cols, array.tobytes()
