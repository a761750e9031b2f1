"""Arrays and answers as messages, and back."""

from __future__ import annotations

from typing import cast

import numpy as np

from logitsieve.types.decoder import NORMALIZER_CODES, Target, aim_of
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Answer, TopKReply
from logitsieve.types.tensors import decode, encode
from logitsieve.v1 import decoder_pb2 as pb

NORMALIZER_NAMES = {code: name for name, code in NORMALIZER_CODES.items()}


def to_tensor(array: np.ndarray) -> pb.Tensor:
    """An array [rows, cols] as a message."""
    dtype, rows, cols, data = encode(array)
    return pb.Tensor(dtype=cast("pb.DType", dtype), rows=rows, cols=cols, data=data)


def to_array(tensor: pb.Tensor, field: str) -> np.ndarray:
    """A message as an array [rows, cols] that the caller owns."""
    return decode(tensor.dtype, tensor.rows, tensor.cols, tensor.data, field).copy()


def to_target(asked: Target, target: pb.Target) -> None:
    """Write what the keywords of a request ask for; InvalidRequest names the one at fault."""
    aim = aim_of(asked)
    target.model = asked.get("model", "")
    if asked.get("exact"):
        target.exact = True
    elif aim.precision is not None:
        target.min_precision = aim.precision
    elif not aim.automatic:
        target.head.name = aim.head
        target.head.knobs.update(dict(aim.knobs))
    if aim.normalizer:
        if aim.normalizer not in NORMALIZER_CODES:
            raise InvalidRequest("normalizer", aim.normalizer, ", ".join(NORMALIZER_CODES))
        target.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[aim.normalizer])


def to_reply(response: pb.TopKResponse) -> TopKReply:
    """A response as what the in-process decoder returns."""
    answer = response.answer
    return TopKReply(
        ids=to_array(response.ids, "ids"),
        logits=to_array(response.logits, "logits"),
        answer=Answer(
            model=answer.model,
            version=answer.version,
            digest=answer.digest,
            head=answer.head.name,
            knobs=dict(answer.head.knobs),
            exact=to_array(answer.exact, "exact")[:, 0],
            scanned=to_array(answer.scanned, "scanned")[:, 0],
            fallback=to_array(answer.fallback, "fallback")[:, 0],
            normalizer=NORMALIZER_NAMES.get(answer.normalizer, ""),
            log_z=to_array(answer.log_z, "log_z")[:, 0] if answer.HasField("log_z") else None,
            queue_ns=answer.queue_ns,
            compute_ns=answer.compute_ns,
        ),
    )
