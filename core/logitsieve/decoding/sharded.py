"""A decoder that asks the shards of a softmax in parallel and merges their answers."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, Literal

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Decoder, Engine, EngineBase
from logitsieve.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    ShardUnavailable,
    Unavailable,
)
from logitsieve.api.keywords import ANSWERING, ModelSpec, Purpose
from logitsieve.api.requests import (
    FILTERS,
    NO_FILTERS,
    BeamStepRequest,
    SampleRequest,
    ScoreRequest,
    TopKRequest,
)
from logitsieve.api.results import (
    Answer,
    ArrayLike,
    BeamStepReply,
    Float32,
    Provenance,
    RowRange,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.beam import choose_pairs
from logitsieve.decoding.distinct import refuse_more
from logitsieve.decoding.engine import NO_LOG_Z
from logitsieve.decoding.local_decoder import LocalDecoder
from logitsieve.decoding.logit_edits import BestLogits, check_ids
from logitsieve.decoding.normalizers import CANDIDATES, FULL, LogZ, LogZ32
from logitsieve.decoding.shards import (
    Shard,
    ShardCandidates,
    ShardRequest,
    best_of,
    check_shards,
    distinct_winners,
    filtered,
    log_z_of,
    merge,
    proven_where,
    winners,
)
from logitsieve.heads._base.head import checked_k, refuse_row
from logitsieve.index.index import open_index
from logitsieve.index.split import shard_folders
from logitsieve.kernels.topk.merge import HIGH, LOW
from logitsieve.utils.deadline import current_timings, ending_by, time_left
from logitsieve.utils.hidden import as_hidden

Missing = Literal["refuse", "answer"]

CALLS_AT_ONCE = 8  # per shard


class ShardedDecoder(Decoder):
    """Answers from shards. Thread-safe. See docs/shards.md.

    Raises InvalidRequest if the shards overlap, leave a gap, or belong to different softmaxes. If a
    shard is unreachable, `missing` "refuse" raises ShardUnavailable; "answer" leaves it out, names
    its rows in `answer.rows_missing`, and proves no row.
    """

    def __init__(
        self, shards: Sequence[Shard], *, name: str = "", missing: Missing = "refuse"
    ) -> None:
        if missing not in ("refuse", "answer"):
            raise InvalidRequest("missing", repr(missing), "'refuse' or 'answer'")
        check_shards(shards)
        self.shards, self.name, self.missing = tuple(shards), name, missing
        self.vocab_size, self.digest = shards[0].vocab_size, shards[0].softmax_sha256
        self._pools = [ThreadPoolExecutor(CALLS_AT_ONCE) for _ in shards]

    def _rows(self, hidden_states: ArrayLike) -> Float32:
        return as_hidden(hidden_states)

    def engine_for(self, spec: ModelSpec, rows: int, k: int, purpose: Purpose = "") -> Engine:
        """See `Decoder`."""
        return ShardedEngine(self, spec)

    def ask(
        self,
        question: Callable[[ShardRequest], ShardCandidates],
        hidden_states: Float32,
        constraints: Constraints | None,
        least: int = 1,
    ) -> ShardCandidates:
        """Return the merged answers about `hidden_states` [B, D]; no call is left running.

        If shards may be missing, calls get half of the remaining time. Raises ShardUnavailable, or
        InvalidRequest for a row with fewer than `least` allowed ids.
        """
        check_finite(hidden_states)
        rows, left, share = (
            len(hidden_states),
            time_left(),
            0.5 if self.missing == "answer" else 1.0,
        )
        deadline = None if left is None else monotonic() + share * left
        sets = None if constraints is None else constraints.for_rows(rows)
        parts = [ShardRequest.of(shard, sets, rows) for shard in self.shards]
        ids_left = np.sum([part.left for part in parts], axis=0)
        if (ids_left < least).any():
            got = f"{ids_left.min()} ids left in row {ids_left.argmin()}"
            raise InvalidRequest("constraints", got, f"at least {least} for each row")

        timings = current_timings()

        def ask(part: ShardRequest) -> ShardCandidates:
            started = perf_counter_ns()
            try:
                with ending_by(deadline):
                    return question(part)
            finally:
                if timings is not None:
                    timings.append((f"shard {part.shard.first}", started, perf_counter_ns()))

        calls = [pool.submit(ask, part) for pool, part in zip(self._pools, parts, strict=True)]
        wait(calls, None if deadline is None else deadline - monotonic())
        # Calls that still wait for a thread have no time left; the others end by their deadline.
        wait([call for call in calls if not call.cancel()])
        found, lost = list[ShardCandidates](), list[RowRange]()
        for part, call in zip(parts, calls, strict=True):
            try:
                found.append(call.result())
            except (Unavailable, DeadlineExceeded, CancelledError) as error:
                lost.append(RowRange(part.shard.first, part.shard.rows))
                ids_left -= part.left
                reason = error
        if lost and (self.missing == "refuse" or not found or (ids_left < least).any()):
            raise ShardUnavailable(*lost[0]) from reason
        return merge(found, tuple(lost))

    def close(self) -> None:
        """Close the shards' decoders; no call may be active."""
        for pool, shard in zip(self._pools, self.shards, strict=True):
            pool.shutdown()
            close: Callable[[], object] = getattr(shard.decoder, "close", lambda: None)
            close()


class ShardedEngine(EngineBase):
    """Answers from the shards of a decoder with the keywords of one `ModelSpec`."""

    def __init__(self, decoder: ShardedDecoder, spec: Mapping[str, Any]) -> None:
        if (model := spec.get("model", "")) not in ("", decoder.name):
            raise ModelNotFound(f"model: got {model}, here is only {decoder.name!r}", "model")
        self._decoder = decoder
        self._spec = {name: spec[name] for name in spec if name in ANSWERING}
        self._plain = {**self._spec, "normalizer": None, "width": None}
        # A logit is its log-probability plus log Z, so it is as exact as log Z.
        self._closely = {**self._spec, "normalizer": spec.get("normalizer") or FULL.name}

    def _topk(self, request: TopKRequest) -> TopKReply:
        started, hidden_states = perf_counter_ns(), as_hidden(request.hidden_states)
        k, constraints = checked_k(request.k, self._decoder.vocab_size), request.constraints
        question = partial(ShardRequest.best, hidden_states=hidden_states, k=k, spec=self._spec)
        best = best_of(self._decoder.ask(question, hidden_states, constraints, k), k)
        log_z = NO_LOG_Z if best.answer.log_z is None else log_z_of(best).rounded()
        answer = self._origin(started, best, log_z)
        return TopKReply(best.ids, best.logits.astype(np.float32), answer)

    def _score(self, request: ScoreRequest) -> ScoreReply:
        """Return logit - log Z of the ids, never `proven`, since shards round their logits."""
        started, hidden_states = perf_counter_ns(), as_hidden(request.hidden_states)
        token_ids, constraints = request.token_ids, request.constraints
        rows, count = token_ids.shape
        check_ids(token_ids, self._decoder.vocab_size, "token_ids")
        question = partial(
            ShardRequest.score, hidden_states=hidden_states, ids=token_ids, spec=self._spec
        )
        found = self._decoder.ask(question, hidden_states, constraints)
        log_z = log_z_of(found)
        log_probs, _ = log_z.log_probs(found.logits.max(axis=1), token_ids)
        found = proven_where(np.zeros(rows, np.bool_), found)
        source = {"scanned": np.full(rows, count, np.int32)}
        return ScoreReply(log_probs, self._origin(started, found, log_z.rounded(), **source))

    def _sample(self, request: SampleRequest) -> SampleReply:
        """Draw with the whole softmax's noise; InvalidRequest for top_p or min_p without top_k."""
        started, hidden_states = perf_counter_ns(), as_hidden(request.hidden_states)
        how, constraints, source = request.sampling, request.constraints, dict[str, Any]()
        if not how.replace:
            refuse_more(how.samples, self._decoder.vocab_size)
        if how.temperature == 0.0:
            how = how._replace(top_k=1, temperature=1.0)
        if how.filtered and not how.top_k:
            filters = zip(FILTERS, how.filters, NO_FILTERS, strict=True)
            name, value, off = next(each for each in filters if each[1] != each[2])
            raise InvalidRequest(name, value, f"{off:g} over shards, or a top_k beside it")
        if how.top_k:
            k = min(how.top_k, self._decoder.vocab_size)
            question = partial(
                ShardRequest.best, hidden_states=hidden_states, k=k, spec=self._plain
            )
            found = filtered(
                best_of(self._decoder.ask(question, hidden_states, constraints), k), how
            )
            lists = found.ids[:, None], found.logits[:, None]
            log_z = LogZ.estimate(np.logaddexp.reduce(found.logits, axis=1), 1.0)
            source["normalizer"] = CANDIDATES.name
        else:
            question = partial(
                ShardRequest.draws, hidden_states=hidden_states, how=how, spec=self._closely
            )
            found = self._decoder.ask(question, hidden_states, constraints)
            lists, log_z = (found.ids.swapaxes(1, 2), found.logits.swapaxes(1, 2)), log_z_of(found)
            if not how.replace:  # one draw without replacement has all ids as its candidates
                rows = len(hidden_states)
                lists = found.ids.reshape(rows, 1, -1), found.logits.reshape(rows, 1, -1)
        choose = winners if how.replace else distinct_winners
        ids, logits, perturbed, sure = choose(*lists, found.logit_error, how)
        log_probs, _ = log_z.log_probs(logits, ids)
        found = proven_where(sure, found)
        answer = self._origin(started, found, log_z.rounded(), **source)
        return SampleReply(ids, log_probs, perturbed, answer)

    def _beam_step(self, request: BeamStepRequest) -> BeamStepReply:
        started, hidden_states = perf_counter_ns(), as_hidden(request.hidden_states)
        beams, constraints = request.beams, request.constraints
        check_finite(hidden_states)
        check_ids(np.array(beams.eos_ids, np.int32), self._decoder.vocab_size, "eos_ids")
        live, k = np.flatnonzero(~beams.finished), min(beams.beams_out, self._decoder.vocab_size)
        sets = None if constraints is None else constraints.for_rows(len(hidden_states)).take(live)
        hidden_states = hidden_states[live]

        def question(part: ShardRequest) -> ShardCandidates:
            every = ShardRequest.of(part.shard, None, len(live)).best(
                hidden_states, 1, self._closely
            )
            return part.best(hidden_states, k, self._plain)._replace(log_z=every.log_z)

        best = best_of(self._decoder.ask(question, hidden_states, sets, least=0), k)
        log_z = log_z_of(best)
        log_z.fields[:, LOW] -= best.logit_error
        log_z.fields[:, HIGH] += best.logit_error
        facts = {name: getattr(best.answer, name) for name in Provenance._fields}
        lists = BestLogits(best.ids, best.logits, Provenance(**facts))
        step = choose_pairs(beams, live, k, lists, (best.ids >= 0).sum(axis=1), log_z)
        source = {**step.provenance._asdict(), "normalizer": self._closely["normalizer"]}
        return BeamStepReply(*step[:5], self._origin(started, best, step.log_z, **source))

    def _origin(self, started: int, found: ShardCandidates, log_z: LogZ32, **source: Any) -> Answer:
        value, low, high, error = log_z
        return found.answer._replace(
            model=self._decoder.name, version="", digest=self._decoder.digest,
            log_z=value, log_z_low=low, log_z_high=high, log_z_error=error,
            queue_ns=0, compute_ns=perf_counter_ns() - started, **source,
        )  # fmt: skip


def check_finite(hidden_states: Float32) -> None:
    """InvalidRequest names the first row of hidden_states [B, D] that is not finite."""
    if not (finite := np.isfinite(hidden_states).all(axis=1)).all():
        refuse_row(int(finite.argmin()))


def open_sharded(
    path: Path | str, *, missing: Missing = "refuse", **options: Any
) -> ShardedDecoder:
    """Open a folder that `split_index` wrote, with the options and errors of `open_index`."""
    indexes = [open_index(folder, **options) for folder in shard_folders(path)]
    shards = [Shard.of(LocalDecoder(index), index.manifest) for index in indexes]
    return ShardedDecoder(shards, name=Path(path).absolute().parent.name, missing=missing)
