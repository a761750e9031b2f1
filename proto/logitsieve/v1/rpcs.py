"""The RPCs that answer a request with a reply, and the names of their metadata."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from logitsieve.api.requests import (
    BeamStepRequest,
    Request,
    SampleRequest,
    ScoreRequest,
    TopKRequest,
)
from logitsieve.api.results import BeamStepReply, SampleReply, ScoreReply, TopKReply
from logitsieve.v1 import decoder_pb2 as pb

TRAILER = "logitsieve-error-bin"
TIMEOUT = "logitsieve-timeout-ms"  # a call's whole time; less the time left, it tells the wait

Reply = TopKReply | BeamStepReply | SampleReply | ScoreReply
R_co = TypeVar("R_co", bound=Reply, covariant=True)


class Rpc(NamedTuple, Generic[R_co]):


    name: str
    field: str
    kind: type[Request[R_co]]
    request: type[Any]
    response: type[Any]  # field 1 is its Answer; others have the names of the reply's arrays
    reply: type[R_co]

    @property
    def method(self) -> str:
        return self.kind.METHOD


TOP_K = Rpc("TopK", "top_k", TopKRequest, pb.TopKRequest, pb.TopKResponse, TopKReply)
BEAM_STEP = Rpc(
    "BeamStep", "beam_step", BeamStepRequest, pb.BeamStepRequest, pb.BeamStepResponse, BeamStepReply
)
SAMPLE = Rpc("Sample", "sample", SampleRequest, pb.SampleRequest, pb.SampleResponse, SampleReply)
SCORE = Rpc("Score", "score", ScoreRequest, pb.ScoreRequest, pb.ScoreResponse, ScoreReply)

RPCS: tuple[Rpc[Reply], ...] = TOP_K, BEAM_STEP, SAMPLE, SCORE
RPC_OF: dict[type[Request[Any]], Rpc[Reply]] = {rpc.kind: rpc for rpc in RPCS}
