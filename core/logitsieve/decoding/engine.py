"""The engine that answers requests from one index at one operating point."""

from math import inf
from time import perf_counter_ns
from typing import Any, ClassVar

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import EngineBase
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import (
    BeamStepRequest,
    Request,
    SampleRequest,
    ScoreRequest,
    TopKRequest,
)
from logitsieve.api.results import (
    Answer,
    ArrayLike,
    BeamStepReply,
    Bool,
    Float32,
    Int32,
    Provenance,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.beam import beam_step
from logitsieve.decoding.distinct import distinct_sample
from logitsieve.decoding.logit_edits import best_edited, check_ids, edits_of, open_edits, wanted_of
from logitsieve.decoding.normalizers import (
    APPROXIMATE,
    FULL,
    NORMALIZERS,
    LogZ32,
    Query,
    best_with_log_z,
    default_normalizer,
    find_normalizer,
    stepping_normalizer,
)
from logitsieve.decoding.sampler import sample
from logitsieve.heads._base.head import checked_k, ready_hidden
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index import Index

NO_LOG_Z = LogZ32(None)


class LocalEngine(EngineBase):
    """Answers from one index by one head, with one normalizer ("" for each method's default).

    A `width` needs a normalizer that proves an interval of log Z, by default `score`'s; any other
    raises InvalidRequest. Immutable; any number of threads may call it.
    """

    takes_tensors: ClassVar[bool] = False

    @staticmethod
    def rows(index: Index, hidden_states: ArrayLike) -> Float32:
        return ready_hidden(hidden_states, index.dim)

    def __init__(
        self, model: str, index: Index, head: Head, normalizer: str, width: float = inf
    ) -> None:
        self.model, self.version, self.digest = model, str(index.version), index.digest
        self.head, self.knobs, self.width = head.name, dict(head.knobs), width
        self.max_error, self._fallback_max_error = head.max_error, head.fallback_max_error
        self._index, self.answering = index, head
        self._stepping = find_normalizer(normalizer or stepping_normalizer(head))
        self.estimates_log_z = head.estimates_log_z
        if width < inf:
            normalizer = normalizer or default_normalizer(index)
            if not find_normalizer(normalizer).has_bounds:
                proving = " or ".join(each.name for each in NORMALIZERS.values() if each.has_bounds)
                got = f"none beside normalizer {normalizer!r}, which proves no interval"
                raise InvalidRequest("width", width, f"{got}: {proving} does")
        self.normalizer = normalizer
        self._normalizer = find_normalizer(normalizer) if normalizer else None
        self._scoring = find_normalizer(normalizer or default_normalizer(index))

    def __repr__(self) -> str:
        knobs = "".join(f" {name}={value:g}" for name, value in self.knobs.items())
        normalizer = f", normalizer={self.normalizer}" if self.normalizer else ""
        return f"<LocalEngine {self.model}@{self.version}: head={self.head}{knobs}{normalizer}>"

    def _topk(self, request: TopKRequest) -> TopKReply:
        started, head, log_z = perf_counter_ns(), self.answering, NO_LOG_Z
        hidden_states, k = request.hidden_states, request.k
        if request.constraints is not None:
            return self._constrained(request, request.constraints)
        if self._normalizer is not None:
            hidden_states = ready_hidden(hidden_states, self._index.dim)
        if self._normalizer is APPROXIMATE:
            k = checked_k(k, self._index.vocab_size)
            if head.name == FULL.name or head.estimates_at(1.0, k):
                return self._estimated(started, hidden_states, k)
        ids, logits, proven, scanned, fallback = head.topk(hidden_states, k)
        if self._normalizer is not None:
            query = Query(self._index, head, hidden_states, k=k, width=self.width)
            log_z = self._normalizer.log_z(query).rounded()
        max_error = self.max_error
        if 0.0 < self._fallback_max_error < max_error and fallback.all():
            max_error = self._fallback_max_error
        # Making a Provenance instead of a tuple would take a tenth of this method's time.
        provenance = proven, scanned, fallback, max_error
        return TopKReply(ids, logits, self._origin(started, provenance, self.normalizer, log_z))

    def _estimated(self, started: int, hidden_states: Float32, k: int) -> TopKReply:
        query = Query(self._index, self.answering, hidden_states, k=k)
        best, log_z = best_with_log_z(query, self.answering)
        answer = self._origin(started, best.provenance, self.normalizer, log_z.rounded())
        return TopKReply(best.ids, best.logits.astype(np.float32), answer)

    def _constrained(self, request: TopKRequest, constraints: Constraints) -> TopKReply:
        started, index, head, log_z = perf_counter_ns(), self._index, self.answering, NO_LOG_Z
        hidden_states = ready_hidden(request.hidden_states, index.dim)
        k = checked_k(request.k, index.vocab_size)
        edits = edits_of(index.softmax, constraints, hidden_states)
        wanted = wanted_of(edits, k, index.vocab_size)
        if edits.mask is not None and edits.plain:  # the head answers alone
            top = head.masked(edits.mask).topk(hidden_states, k)
            ids, logits, source = top.ids, top.logits, Provenance(*top[2:], head.max_error)
        else:
            best = best_edited(index.softmax, head, hidden_states, wanted, edits)
            ids, logits, source = best.ids, best.logits.astype(np.float32), best.provenance
        if self._normalizer is not None:
            query = Query(index, head, hidden_states, edits, k, width=self.width).by(head)
            log_z = self._normalizer.log_z(query).rounded()
        return TopKReply(ids, logits, self._origin(started, source, self.normalizer, log_z))

    def _score(self, request: ScoreRequest) -> ScoreReply:
        """Return logit - log Z of the ids, -inf for p = 0.

        Forbidden ids have p = 0. Ids that the head does not scan have it under "candidates", and
        their preview's logit under "lowrank". A row's `scanned` is the number of its `token_ids`.
        """
        started, normalizer, token_ids = perf_counter_ns(), self._scoring, request.token_ids
        query, rows = self._query(request), len(token_ids)
        check_ids(token_ids, self._index.vocab_size, "token_ids")
        log_z, logits = normalizer.token_logits(query, token_ids)
        log_probs, proven = log_z.log_probs(logits, token_ids)
        scanned, fallback = np.full(rows, token_ids.shape[1], np.int32), np.zeros(rows, np.bool_)
        provenance = Provenance(proven, scanned, fallback)
        answer = self._origin(started, provenance, normalizer.name, log_z.rounded())
        return ScoreReply(log_probs, answer)

    def _sample(self, request: SampleRequest) -> SampleReply:
        started = perf_counter_ns()
        draw = sample if request.sampling.replace else distinct_sample
        draws = draw(self._query(request), request.sampling, self._normalizer)
        answer = self._origin(started, draws.provenance, draws.normalizer, draws.log_z)
        return SampleReply(draws.ids, draws.log_probs, draws.perturbed, answer)

    def _query(self, request: Request[Any]) -> Query:
        hidden_states = ready_hidden(request.hidden_states, self._index.dim)
        query = Query(self._index, self.answering, hidden_states, width=self.width)
        if request.constraints is None:
            return query
        edits = open_edits(self._index.softmax, request.constraints, hidden_states)
        return query._replace(edits=edits).by(self.answering)

    def _beam_step(self, request: BeamStepRequest) -> BeamStepReply:
        started, normalizer = perf_counter_ns(), self._stepping
        hidden_states = ready_hidden(request.hidden_states, self._index.dim)
        query = Query(self._index, self.answering, hidden_states, width=self.width)
        step = beam_step(query, request.beams, request.constraints, normalizer)
        answer = self._origin(started, step.provenance, normalizer.name, step.log_z)
        return BeamStepReply(*step[:5], answer)

    def _origin(
        self,
        started: int,
        provenance: tuple[Bool, Int32, Bool, float],
        normalizer: str,
        log_z: LogZ32 = NO_LOG_Z,
    ) -> Answer:
        """Make the `Answer` of a reply begun at `started` (ns) from the fields of a Provenance."""
        proven, scanned, fallback, max_error = provenance  # passing *provenance takes twice as long
        value, low, high, error = log_z
        return Answer(
            self.model, self.version, self.digest, self.head, proven, scanned, fallback,
            max_error, self.knobs.copy(), normalizer, value, low, high, error, 0,
            perf_counter_ns() - started,
        )  # fmt: skip
