"""The Decoder protocol over any carrier of requests to a server."""

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
    """The methods of a `Decoder`; subclasses carry requests to a server.

    Rows of float16 and bfloat16 travel unchanged, others as float32. Raises InvalidRequest naming
    the field, ModelNotFound, and other ServiceErrors.
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

        `model` names the index; `head` and `knobs`, `min_precision` or `exact` the operating point,
        else AUTO chooses. A `normalizer` or a `width` adds log Z, in a proven interval of at most
        `width` nats.
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
        """Return log-probabilities of `targets`, ids [B, T] or [B], under the `constraints`.

        If given, `width` bounds their error in nats. Other keywords are like `topk`'s; a
        `normalizer` is chosen if absent.
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

        Only the `top_k` best ids remain (0: all), of these the least set with a probability of
        `top_p` or more, and ids `min_p` times as probable as the best, or more. A draw depends on
        its row's seed (uint64 [B]; one number is spread; None: fresh ones), on `step` and on its
        place in the row. Other keywords are like `topk`'s; by default draws are proven.
        """
        request = pb.SampleRequest()
        # Fresh seeds are drawn here, so a retry draws the same ids.
        draws = sampling(fill(request, hidden, constraints, options), samples, options)
        put(request.seeds, draws.seeds)
        for name in ("samples", "step", "temperature", "top_k", "top_p", "min_p", "log_probs"):
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

        A hypothesis is a row of `hidden` with a score, a length in tokens (None: 0) and perhaps
        `finished`; then it continues as itself, with the first of `eos_ids`. Continuations rank by
        score / ((5 + length) / 6)^length_alpha. Other keywords are like `topk`'s.
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
    """Reuse a method that returns `_reply(...)` or `_call(...)`, here a coroutine."""
    return cast("Awaited[P, T]", method)


class AsyncRemoteDecoder(AsyncClosing):
    """A `RemoteDecoder` to be awaited."""

    topk = awaited(RemoteDecoder.topk)
    score = awaited(RemoteDecoder.score)
    sample = awaited(RemoteDecoder.sample)
    beam_step = awaited(RemoteDecoder.beam_step)

    @abstractmethod
    async def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        """Return the response to a request, or raise one of our exceptions."""

    async def _reply(self, rpc: Rpc[R], request: Any) -> R:
        return to_reply(rpc, await self._ask(rpc, request))
