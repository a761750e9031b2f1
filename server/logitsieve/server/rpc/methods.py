"""Readers of requests: sizes are checked here, on the event loop, values in `compute`.

Shape letters: B batch rows, T targets.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import BeamOptions, OverAll, SampleOptions
from logitsieve.api.requests import beams, sampling, score_targets
from logitsieve.api.results import Float32
from logitsieve.server.config import ServeConfig
from logitsieve.server.models.served import AnyIndex
from logitsieve.server.rpc.codec import to_array, to_constraints, to_vector, vector_if_set
from logitsieve.server.scheduling.request import ALL, Point, PreparedRequest
from logitsieve.utils.hidden import as_hidden
from logitsieve.utils.wire_tensors import DType
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import BEAM_STEP, SAMPLE, SCORE, TOP_K, Reply, Rpc


class Method(NamedTuple):
    rpc: Rpc[Reply]
    read: Callable[[Any, ServeConfig, AnyIndex], PreparedRequest]
    finds_log_z: bool  # even if no normalizer is named


def read_top_k(request: pb.TopKRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    hidden, constraints, edited = _read_rows(request, config)
    k = _within("k", request.k, config.max_k, 0)  # the head refuses 0
    if constraints is None:
        return PreparedRequest(
            len(hidden), k, 0, 0, lambda point, rows: point.topk(hidden[rows], k), hidden,
            over="best",
        )  # fmt: skip
    part = _parts(hidden, index, constraints)

    def compute(point: Point, rows: slice) -> Reply:
        ready, sets = part(rows)
        return point.topk(ready, k, sets)

    return PreparedRequest(len(hidden), k, edited, 0, compute)


def read_score(request: pb.ScoreRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    hidden, constraints, edited = _read_rows(request, config)
    targets = to_array(request.targets, "targets", DType.INT32)  # [B, T]
    if targets.shape[1] > config.max_k:
        allowed = f"at most {config.max_k}"
        raise InvalidRequest("targets", f"{targets.shape[1]} targets a row", allowed)

    part = _parts(hidden, index, constraints)
    checked = cache(lambda: score_targets(targets, len(hidden)))

    def compute(point: Point, rows: slice) -> Reply:
        ready, sets = part(rows)
        return point.score(ready, checked()[rows], sets)

    return PreparedRequest(len(hidden), 1, edited + targets.size, 0, compute)


def read_sample(request: pb.SampleRequest, config: ServeConfig, index: AnyIndex) -> PreparedRequest:
    """Read `seeds`, one for each row or one to spread: the server draws none, for equal retries."""
    hidden, constraints, edited = _read_rows(request, config)
    samples = _within("samples", request.samples, config.max_samples)
    if request.top_k > config.max_k:
        raise InvalidRequest("top_k", request.top_k, f"at most {config.max_k}; 0 filters no ids")
    seeds = to_vector(request.seeds, "seeds", DType.UINT64)
    options: SampleOptions = {
        "seeds": seeds[0] if len(seeds) == 1 else seeds,
        "step": request.step,
        "temperature": request.temperature if request.HasField("temperature") else 1.0,
        "top_k": request.top_k,
        "top_p": request.top_p or 1.0,
        "min_p": request.min_p,
        "log_probs": request.log_probs or not request.HasField("log_probs"),
    }

    part = _parts(hidden, index, constraints)
    checked = cache(lambda: sampling(len(hidden), samples, options))

    def compute(point: Point, rows: slice) -> Reply:
        ready, sets = part(rows)
        how = checked()
        return point.sample(ready, how._replace(seeds=how.seeds[rows]), sets)

    filtered = len(hidden) * min(request.top_k, index.vocab_size)
    drawn = len(hidden) * samples
    return PreparedRequest(len(hidden), 1, edited + filtered, drawn, compute, over="draws")


def read_beam_step(
    request: pb.BeamStepRequest, config: ServeConfig, index: AnyIndex
) -> PreparedRequest:
    """Read hypotheses, by default of score and length 0, unfinished."""
    hidden, constraints, edited = _read_rows(request, config)
    beams_out = _within("beams_out", request.beams_out, config.max_k)
    if len(request.eos_ids) > config.max_k:
        raise InvalidRequest("eos_ids", f"{len(request.eos_ids)} ids", f"at most {config.max_k}")
    scores = vector_if_set(request, "scores", DType.FLOAT32)
    options: BeamOptions = {
        "lengths": vector_if_set(request, "lengths", DType.INT32),
        "finished": vector_if_set(request, "finished", DType.BOOL),
        "eos_ids": list(request.eos_ids),
        "length_alpha": request.length_alpha,
    }

    part = _parts(hidden, index, constraints)
    checked = cache(lambda: beams(len(hidden), scores, request.beams_in, beams_out, options))

    def compute(point: Point, rows: slice) -> Reply:
        ready, sets = part(rows)
        all_ = checked()
        some = {name: getattr(all_, name)[rows] for name in ("scores", "lengths", "finished")}
        return point.beam_step(ready, all_._replace(**some), sets)

    k, together = min(beams_out, index.vocab_size), max(1, min(request.beams_in, len(hidden)))
    over: OverAll = "steps" if constraints is None else ""
    return PreparedRequest(len(hidden), k, edited, 0, compute, together=together, over=over)


METHODS: dict[str, Method] = {
    method.rpc.field: method
    for method in (
        Method(TOP_K, read_top_k, False),
        Method(BEAM_STEP, read_beam_step, True),
        Method(SAMPLE, read_sample, True),
        Method(SCORE, read_score, True),
    )
}


def _read_rows(request: Any, config: ServeConfig) -> tuple[np.ndarray, Constraints | None, int]:
    hidden = to_array(request.hidden, "hidden")
    if not 1 <= len(hidden) <= config.max_rows:
        allowed = f"1..{config.max_rows} rows (serve --max-rows)"
        raise InvalidRequest("hidden", f"{len(hidden)} rows", allowed)
    if not request.HasField("constraints"):
        return hidden, None, 0
    message = request.constraints
    constraints = to_constraints(message, config.max_constraint_ids)
    sets = (message.banned, message.allowed, message.biased, message.repeated)
    return hidden, constraints, sum(one.ids.rows for one in sets)


def _parts(
    hidden: np.ndarray, index: AnyIndex, constraints: Constraints | None
) -> Callable[[slice], tuple[Float32, Constraints | None]]:
    """Return a reader of some rows; it checks the constraints of all of them once."""
    sets = cache(lambda: constraints and constraints.for_rows(len(hidden)))

    def part(rows: slice) -> tuple[Float32, Constraints | None]:
        ready = as_hidden(hidden[rows], index.dim)
        if rows is ALL or constraints is None:
            return ready, constraints
        checked = sets()
        return ready, checked and checked.take(np.arange(len(hidden))[rows])

    return part


def _within(field: str, got: int, most: int, least: int = 1) -> int:
    if not least <= got <= most:
        raise InvalidRequest(field, got, f"an integer in 1..{most}")
    return got
