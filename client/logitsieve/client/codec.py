"""Checked arguments -> requests; responses -> replies. InvalidRequest names the argument."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, TypeVar, cast

import numpy as np

from logitsieve.api.constraints import SETS, Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import NORMALIZER_CODES, Target, point_request
from logitsieve.api.results import ANSWER_COLUMNS, Answer, RowRange
from logitsieve.utils.wire_tensors import decode, put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Reply, Rpc

NORMALIZER_NAMES = {code: name for name, code in NORMALIZER_CODES.items()}

R = TypeVar("R", bound=Reply)


def fill(request: Any, hidden: np.ndarray, constraints: Constraints | None, target: Target) -> None:
    """Write the fields of all requests."""
    put(request.hidden, hidden)
    if constraints is not None:
        _write_constraints(constraints.for_rows(len(hidden)), request.constraints)
    _write_target(target, request.target)


def _write_target(given: Target, target: pb.Target) -> None:
    point = point_request(given)
    target.model = given.get("model", "")
    if given.get("exact"):
        target.exact = True
    elif point.precision is not None:
        target.min_precision = point.precision
    elif not point.automatic:
        target.head.name = point.head
        target.head.knobs.update(dict(point.knobs))
    if point.normalizer:
        if point.normalizer not in NORMALIZER_CODES:
            raise InvalidRequest("normalizer", point.normalizer, ", ".join(NORMALIZER_CODES))
        target.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[point.normalizer])
    if point.width < inf:
        target.log_z_width = point.width


def _write_constraints(ready: Constraints, message: pb.Constraints) -> None:
    message.SetInParent()
    for name in SETS:
        if (sets := getattr(ready, name)) is not None:
            put(getattr(message, name).offsets, sets.offsets)
            put(getattr(message, name).ids, sets.ids)
    if ready.bias is not None:
        put(message.bias, np.asarray(ready.bias))
    message.repetition_penalty = ready.repetition_penalty


def to_reply(rpc: Rpc[R], response: Any) -> R:
    """Read a reply, the response's fields by name; its answer comes last."""
    make: Callable[..., R] = rpc.reply
    arrays = (_array(response, name) for name in rpc.reply._fields[:-1])
    return make(*arrays, _answer(response.answer))


def _array(message: Any, field: str) -> np.ndarray:
    tensor = getattr(message, field)
    return decode(tensor.dtype, tensor.rows, tensor.cols, tensor.data, field).copy()


def _answer(message: pb.Answer) -> Answer:
    columns: dict[str, Any] = {
        name: _array(message, name)[:, 0]
        for name in ANSWER_COLUMNS
        if message.HasField(name) or not name.startswith("log_z")
    }
    return Answer(
        model=message.model,
        version=message.version,
        digest=message.digest,
        head=message.head.name,
        chance=message.chance if message.HasField("chance") else 1.0,
        knobs=dict(message.head.knobs),
        normalizer=NORMALIZER_NAMES.get(message.normalizer, ""),
        queue_ns=message.queue_ns,
        compute_ns=message.compute_ns,
        rows_missing=tuple(RowRange(each.first, each.rows) for each in message.rows_missing),
        **columns,
    )
