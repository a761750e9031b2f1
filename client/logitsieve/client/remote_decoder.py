"""The Decoder protocol over anything that carries a request to a server and a response back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Unpack

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import BeamOptions, SampleOptions, Target, shows_keywords
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.client.replies import R, to_reply
from logitsieve.client.requests import (
    beam_step_request,
    sample_request,
    score_request,
    topk_request,
)


class RemoteDecoder(ABC):
    """The four methods of a decoder; how they get to the server is `_ask`.

    Hidden states of float16 and bfloat16 travel as they are, everything else as float32. All raise
    what the in-process decoder raises, and ServiceError's family for what only a server can meet.
    """

    @abstractmethod
    def _ask(self, rpc: str, request: Any) -> Any:
        """The response to a request of the RPC called so, or one of our exceptions."""

    def _reply(self, kind: type[R], rpc: str, request: Any) -> R:
        return to_reply(kind, self._ask(rpc, request))

    @shows_keywords(Target)
    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; see `Decoder.topk`."""
        request = topk_request(hidden, k, constraints, target)
        return self._reply(TopKReply, "TopK", request)

    @shows_keywords(Target)
    def score(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> ScoreReply:
        """Log-probabilities of `targets`, ids [B, T] or [B]; see `Decoder.score`."""
        request = score_request(hidden, targets, constraints, target)
        return self._reply(ScoreReply, "Score", request)

    @shows_keywords(SampleOptions)
    def sample(
        self,
        hidden: ArrayLike,
        samples: int = 1,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleReply:
        """`samples` draws for each row; see `Decoder.sample`."""
        request = sample_request(hidden, samples, constraints, options)
        return self._reply(SampleReply, "Sample", request)

    @shows_keywords(BeamOptions)
    def beam_step(
        self,
        hidden: ArrayLike,
        scores: ArrayLike | None = None,
        *,
        beams_in: int,
        beams_out: int,
        constraints: Constraints | None = None,
        **options: Unpack[BeamOptions],
    ) -> BeamStepReply:
        """One step of a beam search; see `Decoder.beam_step`."""
        request = beam_step_request(hidden, scores, beams_in, beams_out, constraints, options)
        return self._reply(BeamStepReply, "BeamStep", request)
