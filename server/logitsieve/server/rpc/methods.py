"""Readers of requests: sizes are checked here, on the event loop, values in `read`.

Shape letters: B batch rows, T scored ids.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import BeamOptions
from logitsieve.api.requests import (
    Beams,
    BeamStepRequest,
    SampleRequest,
    Sampling,
    ScoreRequest,
    TopKRequest,
    scored_ids,
)
from logitsieve.server.config import ServeConfig
from logitsieve.server.models.served import AnyIndex
from logitsieve.server.rpc.codec import to_array, to_constraints, to_vector, vector_if_set
from logitsieve.server.scheduling.request import PreparedRequest
from logitsieve.utils.hidden import as_rows
from logitsieve.utils.wire_tensors import DType
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import BEAM_STEP, SAMPLE, SCORE, TOP_K, Reply, Rpc

# The numbers that say how to draw, and whether an explicit 0 differs from an absent field.
DRAW_FIELDS = tuple(
    (field.name, field.has_presence)
    for field in pb.SampleRequest.DESCRIPTOR.fields
    if field.name in Sampling._field_defaults
)


class Method(NamedTuple):
    rpc: Rpc[Reply]
    read: Callable[[Any, ServeConfig, AnyIndex], PreparedRequest]
    finds_log_z: bool  # even if no normalizer is named


def read_top_k(request: pb.TopKRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    rows = _read_rows(request, config)
    k = whole("k", request.k, 1, config.max_k)

    def read() -> TopKRequest:
        return TopKRequest(rows.checked(index.dim), k, constraints=rows.constraints())

    purpose = TopKRequest.purpose(rows.constrained)
    if rows.constrained:
        return PreparedRequest(rows.size, k, rows.edited, 0, purpose, cache(read))
    return PreparedRequest(rows.size, k, 0, 0, purpose, read, rows.hidden_states)


def read_score(request: pb.ScoreRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    rows = _read_rows(request, config)
    token_ids = to_array(request.token_ids, "token_ids", DType.INT32)  # [B, T]
    if token_ids.shape[1] > config.max_k:
        allowed = f"at most {config.max_k}"
        raise InvalidRequest("token_ids", f"{token_ids.shape[1]} ids a row", allowed)

    def read() -> ScoreRequest:
        hidden_states, wanted = rows.checked(index.dim), scored_ids(token_ids, rows.size)
        return ScoreRequest(hidden_states, wanted, constraints=rows.constraints())

    purpose = ScoreRequest.purpose(rows.constrained)
    return PreparedRequest(rows.size, 1, rows.edited + token_ids.size, 0, purpose, cache(read))


def read_sample(request: pb.SampleRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    """Read `seeds`, one for each row or one to spread: the server draws none, for equal retries."""
    rows = _read_rows(request, config)
    samples = whole("samples", request.samples, 1, config.max_samples)
    if request.top_k > config.max_k:
        raise InvalidRequest("top_k", request.top_k, f"at most {config.max_k}; 0 filters no ids")
    seeds = to_vector(request.seeds, "seeds", DType.UINT64)
    options: Any = {
        name: value
        for name, may_be_0 in DRAW_FIELDS
        if (value := getattr(request, name)) or (may_be_0 and request.HasField(name))
    }
    options["seeds"] = seeds[0] if len(seeds) == 1 else seeds

    def read() -> SampleRequest:
        hidden_states, sampling = rows.checked(index.dim), Sampling.of(rows.size, samples, options)
        return SampleRequest(hidden_states, sampling, constraints=rows.constraints())

    filtered = rows.size * min(request.top_k, index.vocab_size)
    drawn, purpose = rows.size * samples, SampleRequest.purpose(rows.constrained)
    return PreparedRequest(rows.size, 1, rows.edited + filtered, drawn, purpose, cache(read))


def read_beam_step(
    request: pb.BeamStepRequest, config: ServeConfig, index: AnyIndex
) -> PreparedRequest:
    """Read hypotheses, by default of score and length 0, unfinished."""
    rows = _read_rows(request, config)
    beams_in, beams_out = request.beams_in, whole("beams_out", request.beams_out, 1, config.max_k)
    if len(request.eos_ids) > config.max_k:
        raise InvalidRequest("eos_ids", f"{len(request.eos_ids)} ids", f"at most {config.max_k}")
    scores = vector_if_set(request, "scores", DType.FLOAT32)
    options: BeamOptions = {
        "lengths": vector_if_set(request, "lengths", DType.INT32),
        "finished": vector_if_set(request, "finished", DType.BOOL),
        "eos_ids": list(request.eos_ids),
        "length_penalty": request.length_penalty,
    }

    def read() -> BeamStepRequest:
        hidden_states = rows.checked(index.dim)
        beams = Beams.of(rows.size, scores, beams_in, beams_out, options)
        return BeamStepRequest(hidden_states, beams, constraints=rows.constraints())

    k, together = min(beams_out, index.vocab_size), max(1, min(beams_in, rows.size))
    edited, purpose = rows.edited, BeamStepRequest.purpose(rows.constrained)
    return PreparedRequest(rows.size, k, edited, 0, purpose, cache(read), together=together)


METHODS: dict[str, Method] = {
    method.rpc.field: method
    for method in (
        Method(TOP_K, read_top_k, False),
        Method(BEAM_STEP, read_beam_step, True),
        Method(SAMPLE, read_sample, True),
        Method(SCORE, read_score, True),
    )
}


class _Rows(NamedTuple):
    """Rows of hidden_states with their constraints, whose sizes are checked."""

    hidden_states: np.ndarray  # [B, D]
    given: Constraints | None
    edited: int  # ids of all constraints

    @property
    def size(self) -> int:
        return len(self.hidden_states)

    @property
    def constrained(self) -> bool:
        return self.given is not None

    def checked(self, dim: int) -> np.ndarray:
        """Return hidden_states; InvalidRequest unless of an accepted form and this size."""
        return as_rows(self.hidden_states, dim)

    def constraints(self) -> Constraints | None:
        """Check the constraints of all rows."""
        return None if self.given is None else self.given.for_rows(len(self.hidden_states))


def _read_rows(request: Any, config: ServeConfig) -> _Rows:
    hidden_states = to_array(request.hidden_states, "hidden_states")
    if not 1 <= len(hidden_states) <= config.max_rows:
        allowed = f"1..{config.max_rows} rows (serve --max-rows)"
        raise InvalidRequest("hidden_states", f"{len(hidden_states)} rows", allowed)
    if not request.HasField("constraints"):
        return _Rows(hidden_states, None, 0)
    message = request.constraints
    constraints = to_constraints(message, config.max_constraint_ids)
    sets = (message.banned, message.allowed, message.biased, message.repeated)
    return _Rows(hidden_states, constraints, sum(one.ids.rows for one in sets))
