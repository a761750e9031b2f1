"""What a decoder is asked, as messages: refused here where no decoder would take it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import NORMALIZER_CODES, BeamOptions, SampleOptions, Target, aim_of
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import beams, sampling, score_targets
from logitsieve.api.results import ArrayLike
from logitsieve.utils.hidden import as_wire
from logitsieve.utils.wire_tensors import encode
from logitsieve.v1 import decoder_pb2 as pb

UINT32_MAX = (1 << 32) - 1


def topk_request(
    hidden: ArrayLike, k: int, constraints: Constraints | None, target: Target
) -> pb.TopKRequest:
    """InvalidRequest names the argument at fault; so do the others."""
    request = pb.TopKRequest(k=_uint32("k", k))
    _fill(request, hidden, constraints, target)
    return request


def score_request(
    hidden: ArrayLike, targets: ArrayLike, constraints: Constraints | None, target: Target
) -> pb.ScoreRequest:
    """`targets`: ids [B, T] or [B]."""
    request = pb.ScoreRequest()
    rows = _fill(request, hidden, constraints, target)
    request.targets.CopyFrom(to_tensor(score_targets(targets, rows)))
    return request


def sample_request(
    hidden: ArrayLike, samples: int, constraints: Constraints | None, options: SampleOptions
) -> pb.SampleRequest:
    """Seeds that are not given are drawn here, so that a retry draws the same ids."""
    request = pb.SampleRequest()
    rows = _fill(request, hidden, constraints, options)
    how = sampling(rows, samples, options)
    request.seeds.CopyFrom(to_tensor(how.seeds))
    for name in ("samples", "step", "temperature", "top_k", "top_p", "min_p"):
        setattr(request, name, getattr(how, name))
    return request


def beam_step_request(
    hidden: ArrayLike,
    scores: ArrayLike | None,
    beams_in: int,
    beams_out: int,
    constraints: Constraints | None,
    options: BeamOptions,
) -> pb.BeamStepRequest:
    """Hypotheses group by group, one a row of hidden."""
    request = pb.BeamStepRequest()
    rows = _fill(request, hidden, constraints, options)
    how = beams(rows, scores, beams_in, beams_out, options)
    for name in ("scores", "lengths", "finished"):
        getattr(request, name).CopyFrom(to_tensor(getattr(how, name)))
    request.beams_in, request.beams_out = how.beams_in, how.beams_out
    request.eos_ids.extend(how.eos_ids)
    request.length_alpha = how.length_alpha
    return request


def to_tensor(array: np.ndarray) -> pb.Tensor:
    """An array [rows, cols], or [rows], as a message."""
    dtype, rows, cols, data = encode(array)
    return pb.Tensor(dtype=cast("pb.DType", dtype), rows=rows, cols=cols, data=data)


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


def to_constraints(constraints: Constraints, rows: int, message: pb.Constraints) -> None:
    """Write constraints for that many rows; InvalidRequest names the field that is not as said."""
    ready = constraints.for_rows(rows)
    message.SetInParent()
    for name in ("banned", "allowed", "biased", "repeated"):
        if (sets := getattr(ready, name)) is not None:
            getattr(message, name).offsets.CopyFrom(to_tensor(sets.offsets))
            getattr(message, name).ids.CopyFrom(to_tensor(sets.ids))
    if ready.bias is not None:
        message.bias.CopyFrom(to_tensor(np.asarray(ready.bias)))
    message.repetition_penalty = ready.repetition_penalty


def _fill(request: Any, hidden: ArrayLike, constraints: Constraints | None, target: Target) -> int:
    """Write what all requests have, and return the rows of hidden."""
    wire = as_wire(hidden)
    request.hidden.CopyFrom(to_tensor(wire))
    if constraints is not None:
        to_constraints(constraints, len(wire), request.constraints)
    to_target(target, request.target)
    return len(wire)


def _uint32(field: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= UINT32_MAX:
        raise InvalidRequest(field, repr(value), "a positive integer")
    return int(value)
