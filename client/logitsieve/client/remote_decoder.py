"""The Decoder protocol over any carrier of requests to a server and of responses back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import (
    BeamOptions,
    SampleOptions,
    Target,
    check_keywords,
    shows_keywords,
)
from logitsieve.api.requests import beams, sampling, score_targets
from logitsieve.api.results import ArrayLike, BeamStepReply, SampleReply, ScoreReply, TopKReply
from logitsieve.client.codec import R, fill, to_reply, uint32
from logitsieve.client.connection import AsyncClosing
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import BEAM_STEP, SAMPLE, SCORE, TOP_K, Rpc

P = ParamSpec("P")
T = TypeVar("T")
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


class RemoteDecoder(ABC):
    """The four methods of a `Decoder`; subclasses carry requests to a server.

    Rows of float16 and bfloat16 travel as they are, all others as float32. Every method raises
    InvalidRequest naming the field at fault, ModelNotFound, and other ServiceErrors.
    """

    @abstractmethod
    def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        """Return the response to a request, or raise one of our exceptions."""

    def _reply(self, rpc: Rpc[R], request: Any) -> R:
        return to_reply(rpc, self._ask(rpc, request))

    @shows_keywords(Target)
    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> TopKReply:
        """Return the `k` best tokens of each row of `hidden` [B, D] or [D], best first.

        `constraints` limit the ids. `model` chooses the index; `head` and `knobs`, `min_precision`
        or `exact` the operating point, else AUTO does. A `normalizer` or a `width` adds log Z, in a
        proven interval of at most `width` nats.
        """
        check_keywords(Target, target)
        request = pb.TopKRequest(k=uint32("k", k))
        fill(request, hidden, constraints, target)
        return self._reply(TOP_K, request)

    @shows_keywords(Target)
    def score(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> ScoreReply:
        """Return log-probabilities of `targets`, ids [B, T] or [B], one list for each row.

        They are relative to the ids that `constraints` leave, and within `width` nats of the true
        ones, if given. Other keywords are those of `topk`; a `normalizer` is chosen if absent.
        """
        check_keywords(Target, target)
        request = pb.ScoreRequest()
        rows = fill(request, hidden, constraints, target)
        put(request.targets, score_targets(targets, rows))
        return self._reply(SCORE, request)

    @shows_keywords(SampleOptions)
    def sample(
        self,
        hidden: ArrayLike,
        samples: int = 1,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleReply:
        """Draw `samples` ids for each row of `hidden`, from softmax(logits / temperature).

        Only the `top_k` best ids remain (0: all), of those the least set with a probability of at
        least `top_p`, and those at least `min_p` as probable as the best. A draw depends only on
        its row's seed (uint64 [B]; one number is spread; None: fresh ones), on `step` and on its
        place in the row. Other keywords are those of `topk`; by default draws are proven.
        """
        request = pb.SampleRequest()
        # Fresh seeds are drawn here, so a retry draws the same ids.
        draws = sampling(fill(request, hidden, constraints, options), samples, options)
        put(request.seeds, draws.seeds)
        for name in ("samples", "step", "temperature", "top_k", "top_p", "min_p"):
            setattr(request, name, getattr(draws, name))
        return self._reply(SAMPLE, request)

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
        """Return the `beams_out` best continuations of each group of `beams_in` hypotheses.

        A hypothesis is a row of `hidden`, with its score, its length in tokens (None: 0) and
        whether it has `finished` (None: no); a finished one continues as itself, with the first of
        `eos_ids`. Continuations rank by score / ((5 + length) / 6)^length_alpha. Other keywords are
        those of `topk`.
        """
        request = pb.BeamStepRequest()
        rows = fill(request, hidden, constraints, options)
        hypotheses = beams(rows, scores, beams_in, beams_out, options)
        for name in ("scores", "lengths", "finished"):
            put(getattr(request, name), getattr(hypotheses, name))
        request.beams_in, request.beams_out = hypotheses.beams_in, hypotheses.beams_out
        request.eos_ids.extend(hypotheses.eos_ids)
        request.length_alpha = hypotheses.length_alpha
        return self._reply(BEAM_STEP, request)


def awaited(method: Callable[Concatenate[Any, P], T]) -> Awaited[P, T]:
    """Reuse a method that returns the value of `_reply` or `_call`, if that is a coroutine."""
    return cast("Awaited[P, T]", method)


class AsyncRemoteDecoder(AsyncClosing):
    """The methods of `RemoteDecoder`, to be awaited."""

    topk = awaited(RemoteDecoder.topk)
    score = awaited(RemoteDecoder.score)
    sample = awaited(RemoteDecoder.sample)
    beam_step = awaited(RemoteDecoder.beam_step)

    @abstractmethod
    async def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        """Return the response to a request, or raise one of our exceptions."""

    async def _reply(self, rpc: Rpc[R], request: Any) -> R:
        return to_reply(rpc, await self._ask(rpc, request))
