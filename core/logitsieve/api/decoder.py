"""The methods of all decoders, in process and remote: check a request, then ask an engine."""

from __future__ import annotations  # help() shows types as they are written

from abc import ABC, abstractmethod
from typing import Protocol, Unpack

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.keywords import (
    BeamOptions,
    OverAll,
    SampleOptions,
    Target,
    check_keywords,
    shows_keywords,
)
from logitsieve.api.requests import INT32_MAX, Beams, Sampling, beams, sampling, score_targets
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    Float32,
    Int32,
    SampleReply,
    ScoreReply,
    TopKReply,
)


class Answering(Protocol):
    """An engine: the methods of `Decoder` for checked requests, except `hidden` and k of `topk`."""

    def topk(self, hidden: ArrayLike, k: int, constraints: Constraints | None = None) -> TopKReply:
        """See `Decoder.topk`."""

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """See `Decoder.score`."""

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """See `Decoder.sample`."""

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """See `Decoder.beam_step`."""


class Decoder(ABC):
    """Answers requests about the next tokens, for B rows of hidden size D over V ids.

    Every method checks its request, and raises InvalidRequest naming the field at fault. Then an
    engine answers over the ids that the constraints leave. `Target` explains the keywords.
    """

    _most_ids: int = INT32_MAX  # V, if it is known

    @abstractmethod
    def _rows(self, hidden: ArrayLike) -> Float32:
        """Convert `hidden` [B, D] or [D] to [B, D] for engines; InvalidRequest names the fault."""

    @abstractmethod
    def engine_for(self, target: Target, rows: int, k: int, over: OverAll = "") -> Answering:
        """Return the engine for `k` ids of each of `rows` rows."""

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

        A `normalizer` adds log Z of the ids that the constraints leave, a `width` in nats also its
        proven interval.
        """
        if target:
            check_keywords(Target, target)
        if type(hidden) is not np.ndarray or hidden.ndim != 2:
            hidden = self._rows(hidden)
        over: OverAll = "best" if constraints is None and target.get("normalizer") else ""
        return self.engine_for(target, len(hidden), k, over).topk(hidden, k, constraints)

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

        `width` bounds their error in nats; a `normalizer` is chosen if absent.
        """
        check_keywords(Target, target)
        hidden = self._rows(hidden)
        ready = score_targets(targets, len(hidden))
        return self.engine_for(target, len(hidden), 1).score(hidden, ready, constraints)

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

        `SampleOptions` explains filters, seeds, log-probabilities, and how sure draws are.
        """
        hidden = self._rows(hidden)
        ready = sampling(len(hidden), samples, options)
        engine = self.engine_for(options, len(hidden), 1, "draws")
        return engine.sample(hidden, ready, constraints)

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
        """Return the `beams_out` best continuations of each group: one step of a beam search.

        `hidden` has G x `beams_in` rows, group by group, one per hypothesis; `scores` None is 0. A
        continuation's score adds logit - log Z, log Z over all V ids whatever the constraints. A
        finished hypothesis continues as itself with the first of `eos_ids`: its log Z is NaN.

        Ranked by score / ((5 + length) / 6)^length_alpha, ties by parent, then logit, then id. If a
        proven interval of log Z leaves an order open, a narrower one settles it.
        """
        hidden = self._rows(hidden)
        ready = beams(len(hidden), scores, beams_in, beams_out, options)
        k = min(ready.beams_out, self._most_ids)
        engine = self.engine_for(options, len(hidden), k, "steps" if constraints is None else "")
        return engine.beam_step(hidden, ready, constraints)
