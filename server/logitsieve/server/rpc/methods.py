"""The four RPCs of the Decoder service: how a request of each is read.

What only looks at sizes is done here, on the event loop; what goes over the values is left to
`compute`, which runs where the request does.

Shape letters: B batch rows, T targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import BeamOptions, SampleOptions
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import beams, sampling, score_targets
from logitsieve.decoding.engine import Engine
from logitsieve.decoding.normalizers import STEPPING
from logitsieve.index import Index
from logitsieve.server.config import ServeConfig
from logitsieve.server.rpc.arguments import to_array, to_constraints, to_vector, vector_if_set
from logitsieve.server.rpc.replies import Reply, Response
from logitsieve.utils.hidden import as_hidden
from logitsieve.utils.wire_tensors import DType
from logitsieve.v1 import decoder_pb2 as pb


class Asked(NamedTuple):
    """A request that is ready to be computed."""

    rows: int
    k: int  # what AUTO chooses for
    logits: int  # to be computed beside those that the head and log Z need
    draws: int
    compute: Callable[[Engine], Reply]
    independent: np.ndarray | None = None  # hidden, where its rows may share a batch with others


Read = Callable[[Any, ServeConfig, Index], Asked]  # InvalidRequest names the field at fault


class Method(NamedTuple):
    """An RPC that answers one request by one reply."""

    rpc: str
    request: type[Any]
    response: type[Response]
    read: Read
    finds_log_z: bool  # also where no normalizer is named
    normalizer: str = ""  # which one then, unless that depends on the index


def read_top_k(request: pb.TopKRequest, config: ServeConfig, index: Index) -> Asked:
    """The k best of each row."""
    hidden, constraints, edited = _shared(request, config)
    k = request.k
    if k > config.max_k:  # the head knows what else k may be
        raise _beyond("k", k, config.max_k)
    return Asked(
        len(hidden),
        k,
        edited,
        0,
        lambda point: point.topk(hidden, k, constraints),
        hidden if constraints is None else None,
    )


def read_score(request: pb.ScoreRequest, config: ServeConfig, index: Index) -> Asked:
    """Log-probabilities of targets [B, T]."""
    hidden, constraints, edited = _shared(request, config)
    targets = to_array(request.targets, "targets", DType.INT32)
    if targets.shape[1] > config.max_k:
        allowed = f"at most {config.max_k}"
        raise InvalidRequest("targets", f"{targets.shape[1]} targets a row", allowed)

    def compute(point: Engine) -> Reply:
        ready = as_hidden(hidden, index.dim)
        return point.score(ready, score_targets(targets, len(ready)), constraints)

    return Asked(len(hidden), 1, edited + targets.size, 0, compute)


def read_sample(request: pb.SampleRequest, config: ServeConfig, index: Index) -> Asked:
    """Draws by the seeds of the request: a server draws none, so that a retry draws the same."""
    hidden, constraints, edited = _shared(request, config)
    samples = request.samples
    if not 1 <= samples <= config.max_samples:
        raise _beyond("samples", samples, config.max_samples)
    seeds = to_vector(request.seeds, "seeds", DType.UINT64)
    temperature = request.temperature if request.HasField("temperature") else 1.0

    def compute(point: Engine) -> Reply:
        ready = as_hidden(hidden, index.dim)
        options: SampleOptions = {
            "seeds": seeds,
            "step": request.step,
            "temperature": temperature,
            "top_k": request.top_k,
            "top_p": request.top_p or 1.0,
            "min_p": request.min_p,
        }
        return point.sample(ready, sampling(len(ready), samples, options), constraints)

    return Asked(len(hidden), 1, edited, len(hidden) * samples, compute)


def read_beam_step(request: pb.BeamStepRequest, config: ServeConfig, index: Index) -> Asked:
    """Hypotheses that begin at score and length 0, unfinished, where nothing is said of them."""
    hidden, constraints, edited = _shared(request, config)
    beams_out, eos_ids = request.beams_out, request.eos_ids
    if not 1 <= beams_out <= config.max_k:
        raise _beyond("beams_out", beams_out, config.max_k)
    if len(eos_ids) > config.max_k:
        raise InvalidRequest("eos_ids", f"{len(eos_ids)} ids", f"at most {config.max_k}")
    scores = vector_if_set(request, "scores", DType.FLOAT32)
    lengths = vector_if_set(request, "lengths", DType.INT32)
    finished = vector_if_set(request, "finished", DType.BOOL)

    def compute(point: Engine) -> Reply:
        ready = as_hidden(hidden, index.dim)
        options: BeamOptions = {
            "lengths": lengths,
            "finished": finished,
            "eos_ids": eos_ids,
            "length_alpha": request.length_alpha,
        }
        ready_beams = beams(len(ready), scores, request.beams_in, beams_out, options)
        return point.beam_step(ready, ready_beams, constraints)

    return Asked(len(hidden), min(beams_out, index.vocab_size), edited, 0, compute)


# By the names that DecodeRequest and DecodeResponse have for them.
METHODS: dict[str, Method] = {
    "top_k": Method("TopK", pb.TopKRequest, pb.TopKResponse, read_top_k, False),
    "beam_step": Method(
        "BeamStep", pb.BeamStepRequest, pb.BeamStepResponse, read_beam_step, True, STEPPING
    ),
    "sample": Method("Sample", pb.SampleRequest, pb.SampleResponse, read_sample, True),
    "score": Method("Score", pb.ScoreRequest, pb.ScoreResponse, read_score, True),
}


def _shared(request: Any, config: ServeConfig) -> tuple[np.ndarray, Constraints | None, int]:
    """hidden [B, D] in whatever dtype it came, the constraints, and how many ids those name."""
    hidden = to_array(request.hidden, "hidden")
    if len(hidden) > config.max_rows:
        raise InvalidRequest("hidden", f"{len(hidden)} rows", f"1..{config.max_rows} rows")
    if not request.HasField("constraints"):
        return hidden, None, 0
    message = request.constraints
    constraints = to_constraints(message, config.max_constraint_ids)
    sets = (message.banned, message.allowed, message.biased, message.repeated)
    return hidden, constraints, sum(one.ids.rows for one in sets)


def _beyond(field: str, got: int, most: int) -> InvalidRequest:
    return InvalidRequest(field, got, f"an integer in 1..{most}")
