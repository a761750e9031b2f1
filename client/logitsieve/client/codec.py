"""Arguments -> requests, refused here where no decoder would take them; responses -> replies.

InvalidRequest names the argument at fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import (
    NORMALIZER_CODES,
    BeamOptions,
    SampleOptions,
    Target,
    check_keywords,
    point_request,
)
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import beams, sampling, score_targets
from logitsieve.api.results import Answer, ArrayLike
from logitsieve.utils.hidden import as_wire
from logitsieve.utils.wire_tensors import decode, put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Reply, Rpc

UINT32_MAX = (1 << 32) - 1
NORMALIZER_NAMES = {code: name for name, code in NORMALIZER_CODES.items()}

R = TypeVar("R", bound=Reply)


def topk_request(
    hidden: ArrayLike, k: int, constraints: Constraints | None, target: Target
) -> pb.TopKRequest:
    """Write the arguments of `topk` as a message."""
    check_keywords(Target, target)
    request = pb.TopKRequest(k=_uint32("k", k))
    _fill(request, hidden, constraints, target)
    return request


def score_request(
    hidden: ArrayLike, targets: ArrayLike, constraints: Constraints | None, target: Target
) -> pb.ScoreRequest:
    """Write the arguments of `score` as a message."""
    check_keywords(Target, target)
    request = pb.ScoreRequest()
    rows = _fill(request, hidden, constraints, target)
    put(request.targets, score_targets(targets, rows))
    return request


def sample_request(
    hidden: ArrayLike, samples: int, constraints: Constraints | None, options: SampleOptions
) -> pb.SampleRequest:
    """Write the arguments of `sample` as a message.

    Seeds that are not given are drawn here, so that a retry draws the same ids.
    """
    request = pb.SampleRequest()
    draws = sampling(_fill(request, hidden, constraints, options), samples, options)
    put(request.seeds, draws.seeds)
    for name in ("samples", "step", "temperature", "top_k", "top_p", "min_p"):
        setattr(request, name, getattr(draws, name))
    return request


def beam_step_request(
    hidden: ArrayLike,
    scores: ArrayLike | None,
    beams_in: int,
    beams_out: int,
    constraints: Constraints | None,
    options: BeamOptions,
) -> pb.BeamStepRequest:
    """Write the arguments of `beam_step` as a message."""
    request = pb.BeamStepRequest()
    rows = _fill(request, hidden, constraints, options)
    hypotheses = beams(rows, scores, beams_in, beams_out, options)
    for name in ("scores", "lengths", "finished"):
        put(getattr(request, name), getattr(hypotheses, name))
    request.beams_in, request.beams_out = hypotheses.beams_in, hypotheses.beams_out
    request.eos_ids.extend(hypotheses.eos_ids)
    request.length_alpha = hypotheses.length_alpha
    return request


def _fill(request: Any, hidden: ArrayLike, constraints: Constraints | None, target: Target) -> int:
    """Write the fields that all requests have, and return the rows of hidden."""
    wire = as_wire(hidden)
    put(request.hidden, wire)
    if constraints is not None:
        _write_constraints(constraints.for_rows(len(wire)), request.constraints)
    _write_target(target, request.target)
    return len(wire)


def _write_target(given: Target, target: pb.Target) -> None:
    wanted = point_request(given)
    target.model = given.get("model", "")
    if given.get("exact"):
        target.exact = True
    elif wanted.precision is not None:
        target.min_precision = wanted.precision
    elif not wanted.automatic:
        target.head.name = wanted.head
        target.head.knobs.update(dict(wanted.knobs))
    if wanted.normalizer:
        if wanted.normalizer not in NORMALIZER_CODES:
            raise InvalidRequest("normalizer", wanted.normalizer, ", ".join(NORMALIZER_CODES))
        target.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[wanted.normalizer])


def _write_constraints(ready: Constraints, message: pb.Constraints) -> None:
    message.SetInParent()
    for name in ("banned", "allowed", "biased", "repeated"):
        if (sets := getattr(ready, name)) is not None:
            put(getattr(message, name).offsets, sets.offsets)
            put(getattr(message, name).ids, sets.ids)
    if ready.bias is not None:
        put(message.bias, np.asarray(ready.bias))
    message.repetition_penalty = ready.repetition_penalty


def _uint32(field: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= UINT32_MAX:
        raise InvalidRequest(field, repr(value), "a positive integer")
    return int(value)


def to_reply(rpc: Rpc[R], response: Any) -> R:
    """Read a reply: its arrays are named as the fields of the response, its answer comes last."""
    make: Callable[..., R] = rpc.reply
    arrays = (_array(response, name) for name in rpc.reply._fields[:-1])
    return make(*arrays, _answer(response.answer))


def _array(message: Any, field: str) -> np.ndarray:
    """Copy a field, a Tensor, to an array [rows, cols] that the caller owns."""
    tensor = getattr(message, field)
    return decode(tensor.dtype, tensor.rows, tensor.cols, tensor.data, field).copy()


def _answer(message: pb.Answer) -> Answer:
    def column(name: str) -> Any:
        return _array(message, name)[:, 0]

    def column_if_set(name: str) -> Any:
        return column(name) if message.HasField(name) else None

    return Answer(
        model=message.model,
        version=message.version,
        digest=message.digest,
        head=message.head.name,
        knobs=dict(message.head.knobs),
        exact=column("exact"),
        scanned=column("scanned"),
        fallback=column("fallback"),
        normalizer=NORMALIZER_NAMES.get(message.normalizer, ""),
        log_z=column_if_set("log_z"),
        log_z_low=column_if_set("log_z_low"),
        log_z_high=column_if_set("log_z_high"),
        log_z_error=column_if_set("log_z_error"),
        queue_ns=message.queue_ns,
        compute_ns=message.compute_ns,
    )
