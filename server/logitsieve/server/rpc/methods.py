"""Reads requests: checks sizes on the event loop, and leaves values to a thread.

Shape letters: B batch rows, T scored ids.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import BeamOptions
from logitsieve.api.requests import (
    Beams,
    BeamStepRequest,
    Request,
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

# Fields that say how to draw, and whether an explicit 0 differs from an absent field.
DRAW_FIELDS = tuple(
    (field.name, field.has_presence)
    for field in pb.SampleRequest.DESCRIPTOR.fields
    if field.name in Sampling._field_defaults
)


class Method(NamedTuple):
    rpc: Rpc[Reply]
    read: Callable[[Any, ServeConfig, AnyIndex], PreparedRequest]
    finds_log_z: bool


def read_top_k(request: pb.TopKRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    rows = _read_rows(request, config)
    k = whole("k", request.k, 1, config.max_k)
    return rows.prepared(TopKRequest, index, lambda: k, k=k)


def read_score(request: pb.ScoreRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    rows = _read_rows(request, config)
    token_ids = to_array(request.token_ids, "token_ids", DType.INT32)
    if token_ids.shape[1] > config.max_k:
        allowed = f"at most {config.max_k}"
        raise InvalidRequest("token_ids", f"{token_ids.shape[1]} ids a row", allowed)
    wanted = partial(scored_ids, token_ids, len(rows.hidden_states))
    return rows.prepared(ScoreRequest, index, wanted, logits=token_ids.size)


def read_sample(request: pb.SampleRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    """Read a request with a seed for each row, or one for all.

    The server never makes a seed itself, so that a retry draws the same ids.
    """
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
    size = len(rows.hidden_states)
    sampling = partial(Sampling.of, size, samples, options)
    listed = size * min(request.top_k, index.vocab_size)
    return rows.prepared(SampleRequest, index, sampling, logits=listed, draws=size * samples)


def read_beam_step(
    request: pb.BeamStepRequest, config: ServeConfig, index: AnyIndex
) -> PreparedRequest:
    """Read a request; by default hypotheses have score and length 0, and are unfinished."""
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
    size = len(rows.hidden_states)
    beams = partial(Beams.of, size, scores, beams_in, beams_out, options)
    k, together = min(beams_out, index.vocab_size), max(1, min(beams_in, size))
    return rows.prepared(BeamStepRequest, index, beams, k=k, together=together)


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
    hidden_states: np.ndarray
    given: Constraints | None
    edited: int

    def prepared(
        self, kind: Any, index: AnyIndex, asked: Callable[[], Any], *,
        k: int = 1, logits: int = 0, draws: int = 0, together: int = 1,
    ) -> PreparedRequest:  # fmt: skip
        (hidden_states, given, edited), dim = self, index.dim

        def read() -> Request[Any]:
            ready, about = as_rows(hidden_states, dim), asked()
            constraints = None if given is None else given.for_rows(len(ready))
            request: Request[Any] = kind(ready, about, constraints=constraints)
            return request

        alone = given is not None or kind is not TopKRequest
        return PreparedRequest(
            len(hidden_states), k, edited + logits, draws,
            kind.PURPOSE if given is None else kind.CONSTRAINED,
            cache(read) if alone else read, None if alone else hidden_states, together,
        )  # fmt: skip


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
