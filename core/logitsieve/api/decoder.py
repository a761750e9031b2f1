"""The methods of all decoders, local and remote: they check a request, then ask an engine."""

from __future__ import annotations  # help() shows types as they are written

from abc import ABC, abstractmethod
from typing import Protocol, TypeVar, Unpack

from numpy import ndarray

from logitsieve.api.checks import INT32_MAX, whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.keywords import (
    BeamOptions,
    ModelSpec,
    Purpose,
    SampleOptions,
    check_keywords,
    shows_keywords,
)
from logitsieve.api.requests import (
    DEFAULTS,
    Beams,
    BeamStepRequest,
    Request,
    SampleRequest,
    Sampling,
    ScoreRequest,
    TopKRequest,
    scored_ids,
)
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    Float32,
    SampleReply,
    ScoreReply,
    TopKReply,
)

R = TypeVar("R")


class Engine(Protocol):
    """Answers requests: an index at one operating point, shards, or a server."""

    def answer(self, request: Request[R]) -> R:
        """Answer a request, or raise InvalidRequest."""


class EngineBase(ABC):
    """An engine with one method for each kind of request."""

    def answer(self, request: Request[R]) -> R:
        """Answer a request, or raise InvalidRequest."""
        reply: R = getattr(self, f"_{request.METHOD}")(request)
        return reply

    @abstractmethod
    def _topk(self, request: TopKRequest) -> TopKReply: ...

    @abstractmethod
    def _score(self, request: ScoreRequest) -> ScoreReply: ...

    @abstractmethod
    def _sample(self, request: SampleRequest) -> SampleReply: ...

    @abstractmethod
    def _beam_step(self, request: BeamStepRequest) -> BeamStepReply: ...


class Decoder(ABC):
    """Answers requests about the next tokens for B rows of hidden size D, over V ids.

    Every method checks its arguments and raises InvalidRequest, which names the wrong one.
    Only ids that the `constraints` allow are answered. `ModelSpec` explains the other keywords.
    """

    _most_ids: int = INT32_MAX  # V if it is known

    @abstractmethod
    def _rows(self, hidden_states: ArrayLike) -> Float32:
        """Convert `hidden_states` [B, D] or [D] to [B, D], or raise InvalidRequest."""

    @abstractmethod
    def engine_for(self, spec: ModelSpec, rows: int, k: int, purpose: Purpose = "") -> Engine:
        """Return the engine for a request about `rows` rows with `k` ids each."""

    def _answer(self, spec: ModelSpec, request: Request[R], k: int = 1) -> R:
        purpose = request.PURPOSE if request.constraints is None else request.CONSTRAINED
        return self.engine_for(spec, len(request.hidden_states), k, purpose).answer(request)

    @shows_keywords(ModelSpec, DEFAULTS)
    def topk(
        self,
        hidden_states: ArrayLike,
        k: int,
        *,
        constraints: Constraints | None = None,
        **spec: Unpack[ModelSpec],
    ) -> TopKReply:
        """Return the `k` best ids of each row of `hidden_states` [B, D] or [D], best first.

        With a `normalizer` the answer has log Z over the allowed ids; with a `width` in nats, also
        its proven interval.
        """
        if spec:
            check_keywords(ModelSpec, spec)
        if type(hidden_states) is not ndarray or hidden_states.ndim != 2:
            hidden_states = self._rows(hidden_states)  # the engine converts arrays [B, D]
        k = whole("k", k, 1, self._most_ids)
        return self._answer(spec, TopKRequest(hidden_states, k, constraints=constraints), k)

    @shows_keywords(ModelSpec, DEFAULTS)
    def score(
        self,
        hidden_states: ArrayLike,
        token_ids: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **spec: Unpack[ModelSpec],
    ) -> ScoreReply:
        """Return log-probabilities of `token_ids`, [B, T] or [B], under the `constraints`.

        `width` limits their error in nats.
        """
        check_keywords(ModelSpec, spec)
        hidden_states = self._rows(hidden_states)
        ready = scored_ids(token_ids, len(hidden_states))
        return self._answer(spec, ScoreRequest(hidden_states, ready, constraints=constraints))

    @shows_keywords(SampleOptions, DEFAULTS)
    def sample(
        self,
        hidden_states: ArrayLike,
        samples: int = 1,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleReply:
        """Draw `samples` ids for each row of `hidden_states`, from softmax(logits / temperature).

        `SampleOptions` explains filters, seeds, log-probabilities, and how exact draws are.
        """
        if type(hidden_states) is not ndarray or hidden_states.ndim != 2:
            hidden_states = self._rows(hidden_states)  # as in `topk`
        ready = Sampling.of(len(hidden_states), samples, options)
        return self._answer(options, SampleRequest(hidden_states, ready, constraints=constraints))

    @shows_keywords(BeamOptions, DEFAULTS)
    def beam_step(
        self,
        hidden_states: ArrayLike,
        scores: ArrayLike | None = None,
        *,
        beams_in: int,
        beams_out: int,
        constraints: Constraints | None = None,
        **options: Unpack[BeamOptions],
    ) -> BeamStepReply:
        """Take one step of a beam search: return the `beams_out` best continuations of each group.

        `hidden_states` has G x `beams_in` rows, group by group, one for each hypothesis. A
        continuation adds logit - log Z to its hypothesis's score (0 by default), with log Z over
        all V ids even under constraints. A finished hypothesis continues only as itself, by the
        first of `eos_ids`; its log Z is NaN.

        Continuations are ranked by score / ((5 + length) / 6)^length_penalty, ties by parent, then
        logit, then id. If the interval of log Z leaves the order open, it is computed again.
        """
        hidden_states = self._rows(hidden_states)
        ready = Beams.of(len(hidden_states), scores, beams_in, beams_out, options)
        request = BeamStepRequest(hidden_states, ready, constraints=constraints)
        return self._answer(options, request, min(ready.beams_out, self._most_ids))
