"""Answers as messages.

The beginning of a response, which tells the operating point, is serialized once for each point:
protobuf merges what follows into what it has read. Every response has its Answer as field 1, so
one beginning does for all kinds.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from logitsieve.api.decoder import NORMALIZER_CODES
from logitsieve.api.results import Answer, BeamStepReply, SampleReply, ScoreReply, TopKReply
from logitsieve.decoding.engine import Engine
from logitsieve.utils.wire_tensors import CODES
from logitsieve.v1 import decoder_pb2 as pb

Reply = TopKReply | BeamStepReply | SampleReply | ScoreReply
Response = pb.TopKResponse | pb.BeamStepResponse | pb.SampleResponse | pb.ScoreResponse

LENGTH_DELIMITED = 2  # protobuf's wire type of a message within a message


def to_response(kind: type[Response], reply: Reply, queue_ns: int) -> bytes:
    """What the decoder answered and how long the request waited; `to_origin` has the rest.

    A reply's arrays are named as the fields of its message, and its answer comes last.
    """
    response: Any = kind()
    *arrays, source = reply
    for name, array in zip(reply._fields, arrays, strict=False):
        rows, cols = array.shape
        _put(getattr(response, name), rows, cols, array)
    _put_answer(response.answer, source, queue_ns)
    return cast(bytes, response.SerializeToString())


def to_origin(point: Engine) -> bytes:
    """The part of a response that all answers of one operating point share."""
    answer = pb.Answer(model=point.model, version=point.version, digest=point.digest)
    answer.head.CopyFrom(pb.Head(name=point.head, knobs=point.knobs))
    return pb.TopKResponse(answer=answer).SerializeToString()


def to_decode_response(request_id: int, field: str, response: bytes) -> bytes:
    """A DecodeResponse around a serialized response, which is not parsed for it."""
    number = pb.DecodeResponse.DESCRIPTOR.fields_by_name[field].number
    start = pb.DecodeResponse(id=request_id).SerializeToString()
    return b"".join(
        (start, _varint(number << 3 | LENGTH_DELIMITED), _varint(len(response)), response)
    )


def _put_answer(answer: pb.Answer, source: Answer, queue_ns: int) -> None:
    rows = len(source.exact)
    _put(answer.exact, rows, 1, source.exact)
    _put(answer.scanned, rows, 1, source.scanned)
    _put(answer.fallback, rows, 1, source.fallback)
    if source.normalizer:
        answer.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[source.normalizer])
        for name in ("log_z", "log_z_low", "log_z_high", "log_z_error"):
            if (array := getattr(source, name)) is not None:
                _put(getattr(answer, name), rows, 1, array)
    answer.queue_ns, answer.compute_ns = queue_ns, source.compute_ns


def _put(tensor: pb.Tensor, rows: int, cols: int, array: np.ndarray) -> None:
    # Assigned one by one: a Tensor made apart would be copied into its parent.
    tensor.dtype = CODES[array.dtype]  # type: ignore[assignment]  # an int will do
    tensor.rows, tensor.cols, tensor.data = rows, cols, array.tobytes()


def _varint(number: int) -> bytes:
    """7 bits a byte, the lowest first; all but the last have their highest bit set."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
