"""A decoder held at one operating point: what its answers share is found once, not per request."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.requests import Beams, Sampling
from logitsieve.api.results import (
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
from logitsieve.decoding.beam import beam_step
from logitsieve.decoding.constrained import best_edited, wanted_of
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.decoding.normalizers import STEPPING, LogZ, default_normalizer, find_normalizer
from logitsieve.decoding.sampler import sample
from logitsieve.decoding.score import require_some, score
from logitsieve.heads._base.head import Head, checked_k, ready_hidden
from logitsieve.index import Index

NO_LOG_Z = LogZ(None)


class Engine:
    """One index answering through one head, with one normalizer ("" for none).

    Immutable; any number of threads may call it.
    """

    def __init__(self, model: str, index: Index, head: Head, normalizer: str) -> None:
        self.model, self.version, self.digest = model, str(index.version), index.digest
        self.head, self.knobs, self.normalizer = head.name, dict(head.knobs), normalizer
        self.proves = head.proves
        self._index, self.answering = index, head
        self._normalize = find_normalizer(normalizer) if normalizer else None
        self._scoring = normalizer or default_normalizer(index)
        self._stepping = normalizer or STEPPING

    def topk(self, hidden: ArrayLike, k: int, constraints: Constraints | None = None) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; InvalidRequest if not valid."""
        started = perf_counter_ns()
        if constraints is not None:
            return self._constrained(started, hidden, k, constraints)
        head, log_z = self.answering, None
        if self._normalize is not None:
            hidden = ready_hidden(hidden, self._index.dim)  # once for both
        ids, logits, exact, scanned = head.topk(hidden, k)
        if self._normalize is not None:
            log_z = self._normalize(self._index, head, hidden, k, None, 1.0)
        # A head that proves nothing itself owes every proven row to its fallback.
        fallback = np.zeros(len(exact), np.bool_) if self.proves else exact.copy()
        answer = self.answer(started, exact, scanned, fallback, self.normalizer, log_z)
        return TopKReply(ids, logits, answer)

    def _constrained(
        self, started: int, hidden: ArrayLike, k: int, constraints: Constraints
    ) -> TopKReply:
        index, head, log_z = self._index, self.answering, None
        hidden = ready_hidden(hidden, index.dim)
        k = checked_k(k, index.vocab_size)
        edits = edits_of(index.softmax, constraints, hidden)
        wanted = wanted_of(edits, k, index.vocab_size)
        best = best_edited(index.softmax, head, hidden, wanted, edits)
        if self._normalize is not None:
            log_z = self._normalize(index, head, hidden, k, edits, 1.0)
        ids, logits, exact, scanned, fallback = best
        answer = self.answer(started, exact, scanned, fallback, self.normalizer, log_z)
        return TopKReply(ids, logits.astype(np.float32), answer)

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """Log-probabilities of `targets` [B, T] of each row of `hidden` [B, D].

        A row's `scanned` are its targets: what log Z took is the normalizer's affair.
        """
        started, normalizer = perf_counter_ns(), self._scoring
        index, head, rows = self._index, self.answering, len(hidden)
        found = score(index, head, hidden, targets, constraints, normalizer)
        scanned, fallback = np.full(rows, targets.shape[1], np.int32), np.zeros(rows, np.bool_)
        answer = self.answer(started, found.exact, scanned, fallback, normalizer, found.log_z)
        return ScoreReply(found.log_probs, answer)

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """Draws for each row of `hidden` [B, D]."""
        started, index, edits = perf_counter_ns(), self._index, None
        if constraints is not None:
            edits = edits_of(index.softmax, constraints, hidden)
            require_some(edits, index.vocab_size)
        draws = sample(index, self.answering, hidden, sampling, edits, self.normalizer)
        found = draws.exact, draws.scanned, draws.fallback, draws.normalizer, draws.log_z
        return SampleReply(draws.ids, draws.log_probs, self.answer(started, *found))

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """The best continuations of the hypotheses that stand at the rows of `hidden` [B, D]."""
        started, normalizer = perf_counter_ns(), self._stepping
        step = beam_step(self._index, self.answering, hidden, beams, constraints, normalizer)
        answer = self.answer(
            started, step.exact, step.scanned, step.fallback, normalizer, step.log_z
        )
        return BeamStepReply(*step[:5], answer)

    def answer(
        self,
        started: int,
        exact: Bool,
        scanned: Int32,
        fallback: Bool,
        normalizer: str,
        log_z: LogZ | None,
    ) -> Answer:
        """How a reply was made that was begun at `started`, in nanoseconds."""
        found = log_z or NO_LOG_Z
        return Answer(
            self.model,
            self.version,
            self.digest,
            self.head,
            exact,
            scanned,
            fallback,
            self.knobs.copy(),
            normalizer,
            found.value,
            found.low,
            found.high,
            found.error,
            0,
            perf_counter_ns() - started,
        )
