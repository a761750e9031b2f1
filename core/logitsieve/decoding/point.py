"""A decoder held at one operating point: what its answers share is found once, not per request."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from logitsieve.decoding.normalizers import LogZ, find_normalizer
from logitsieve.heads.base import Head, ready_hidden
from logitsieve.index import Index
from logitsieve.types.constraints import Constraints
from logitsieve.types.errors import NotBuilt
from logitsieve.types.requests import Beams, Sampling
from logitsieve.types.results import (
    Answer,
    ArrayLike,
    BeamStepReply,
    Bool,
    Float32,
    Int32,
    SampleReply,
    ScoreReply,
    TopKReply,
)


class Point:
    """One index answering through one head, with one normalizer ("" for none).

    Immutable; any number of threads may call it.
    """

    def __init__(self, model: str, index: Index, head: Head, normalizer: str) -> None:
        self.model, self.version, self.digest = model, str(index.version), index.digest
        self.head, self.knobs, self.normalizer = head.name, dict(head.knobs), normalizer
        self.proves = head.proves
        self._index, self._answering = index, head
        self._normalize = find_normalizer(normalizer) if normalizer else None

    def topk(self, hidden: ArrayLike, k: int, constraints: Constraints | None = None) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; InvalidRequest if not valid."""
        started = perf_counter_ns()
        head, log_z = self._answering, None
        if constraints is not None:
            raise NotBuilt("constraints: not built", "constraints")
        if self._normalize is not None:
            hidden = ready_hidden(hidden, self._index.dim)  # once for both
        ids, logits, exact, scanned = head.topk(hidden, k)
        if self._normalize is not None:
            log_z = self._normalize(self._index, head, hidden, k, None, 1.0)
        return TopKReply(ids, logits, self._answer(started, exact, scanned, self.normalizer, log_z))

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """Log-probabilities of `targets` [B, T] of each row of `hidden` [B, D]."""
        raise NotBuilt("score: not built")

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """Draws for each row of `hidden` [B, D]."""
        raise NotBuilt("sample: not built")

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """The best continuations of the hypotheses that stand at the rows of `hidden` [B, D]."""
        raise NotBuilt("beam_step: not built")

    def _answer(
        self, started: int, exact: Bool, scanned: Int32, normalizer: str, log_z: LogZ | None
    ) -> Answer:
        found = log_z or LogZ(None)
        return Answer(
            self.model,
            self.version,
            self.digest,
            self.head,
            exact,
            scanned,
            # A head that proves nothing itself owes every proven row to its fallback.
            np.zeros(len(exact), np.bool_) if self.proves else exact.copy(),
            self.knobs.copy(),
            normalizer,
            found.value,
            found.low,
            found.high,
            found.error,
            0,
            perf_counter_ns() - started,
        )
