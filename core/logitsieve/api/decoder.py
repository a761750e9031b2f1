"""The methods of all decoders, in process and remote: check a request, then ask an engine."""

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
    """An index at one operating point, shards, or a server: each answers requests."""

    def answer(self, request: Request[R]) -> R:
        """Answer a request of a `Decoder`'s methods; InvalidRequest names the field at fault."""


class EngineBase(ABC):
    """An engine that answers each kind of request by a method of its own."""

    def answer(self, request: Request[R]) -> R:
        """Answer a request; InvalidRequest names the field at fault."""
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
    """Answers requests about the next tokens, for B rows of hidden size D over V ids.

    Every method checks its request, and raises InvalidRequest naming the field at fault. Then an
    engine answers over the ids that the constraints leave. `ModelSpec` explains the keywords.
    """

    _most_ids: int = INT32_MAX  # V, if it is known

    @abstractmethod
    def _rows(self, hidden_states: ArrayLike) -> Float32:
        """Convert `hidden_states` [B, D] or [D] to [B, D] for engines, or InvalidRequest."""

    @abstractmethod
    def engine_for(self, spec: ModelSpec, rows: int, k: int, purpose: Purpose = "") -> Engine:
        """Return the engine for `k` ids of each of `rows` rows."""

    def _answer(self, spec: ModelSpec, request: Request[R]) -> R:
        k = min(request.ids_a_row, self._most_ids)
        purpose = request.purpose(request.constraints is not None)
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
        """Return the `k` best tokens of each row of `hidden_states` [B, D] or [D], best first.

        A `normalizer` adds log Z of the ids that the constraints leave, a `width` in nats also its
        proven interval.
        """
        if spec:
            check_keywords(ModelSpec, spec)
        hidden_states = _for_engine(self, hidden_states)
        k = whole("k", k, 1, self._most_ids)
        return self._answer(spec, TopKRequest(hidden_states, k, constraints=constraints))

    @shows_keywords(ModelSpec, DEFAULTS)
    def score(
        self,
        hidden_states: ArrayLike,
        token_ids: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **spec: Unpack[ModelSpec],
    ) -> ScoreReply:
        """Return log-probabilities of `token_ids`, ids [B, T] or [B], under the `constraints`.

        `width` bounds their error in nats; a `normalizer` is chosen if absent.
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

        `SampleOptions` explains filters, seeds, log-probabilities, and how sure draws are.
        """
        hidden_states = _for_engine(self, hidden_states)
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
        """Return the `beams_out` best continuations of each group: one step of a beam search.

        `hidden_states` has G x `beams_in` rows, group by group, one per hypothesis; `scores` are
        0 by default. A continuation's score adds logit - log Z, over all V ids whatever the
        constraints. A finished hypothesis continues as itself with the first of `eos_ids`: its
        log Z is NaN.

        Ranked by score / ((5 + length) / 6)^length_penalty, ties by parent, then logit, then id. If
        a proven interval of log Z leaves an order open, a narrower one settles it.
        """
        hidden_states = self._rows(hidden_states)
        ready = Beams.of(len(hidden_states), scores, beams_in, beams_out, options)
        return self._answer(options, BeamStepRequest(hidden_states, ready, constraints=constraints))


def _for_engine(decoder: Decoder, hidden_states: ArrayLike) -> Float32:
    """Return arrays [B, D] as they are, since engines convert them; others by `_rows`.

    No method: asynchronous clients have the methods of `Decoder`, but not this base class.
    """
    if type(hidden_states) is ndarray and hidden_states.ndim == 2:
        return hidden_states
    return decoder._rows(hidden_states)
