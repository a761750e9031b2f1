"""A decoder over decoders that have some rows of a softmax each; their answers are merged.

Shape letters: B batch rows, D hidden size, K answers, N draws, T targets, G groups of beams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Target
from logitsieve.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    ShardUnavailable,
    Unavailable,
)
from logitsieve.api.requests import Beams, Sampling
from logitsieve.api.results import (
    Answer,
    ArrayLike,
    BeamStepReply,
    Float32,
    Int32,
    Int64,
    Provenance,
    RowRange,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.beam import choose_pairs
from logitsieve.decoding.constrained import BestLogits
from logitsieve.decoding.decoder import CheckedDecoder, LocalDecoder
from logitsieve.decoding.log_z import LogZ, PrintedLogZ
from logitsieve.decoding.logit_edits import check_ids
from logitsieve.decoding.normalizers import CANDIDATES, EXACT
from logitsieve.decoding.shards import Found, Part, Shard, best_of, check_shards, joined, winners
from logitsieve.heads._base.head import checked_k, refuse_row
from logitsieve.index.reader import open_index
from logitsieve.index.split import SHARDS_FOLDER
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, VALUE
from logitsieve.utils.deadline import ending_by, time_left
from logitsieve.utils.hidden import as_hidden

T = TypeVar("T")
Missing = Literal["refuse", "answer"]

CALLS_AT_ONCE = 8  # of each shard
FIRST, GROWTH = 64, 8  # ids looked at where top-k names no number, and how many times more next
SUMMABLE = ("certified", "exact", "candidates")  # normalizers whose log Z can be added up


class _Lost(Exception):
    """A shard that did not answer."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard


class ShardedDecoder(CheckedDecoder):
    """Answers from shards, which are asked side by side. Any number of threads may call it.

    InvalidRequest if the shards leave a gap, overlap, or belong to different softmaxes. A shard
    that cannot be asked raises ShardUnavailable (`missing` "refuse"), or the request is answered
    without its rows ("answer"): `answer.rows_missing` names them, and no row is `exact`.
    docs/shards.md says what is the same as over the whole softmax.
    """

    def __init__(
        self, shards: Sequence[Shard], *, name: str = "", missing: Missing = "refuse"
    ) -> None:
        if missing not in ("refuse", "answer"):
            raise InvalidRequest("missing", repr(missing), "'refuse' or 'answer'")
        check_shards(shards)
        self.shards, self.name, self.missing = tuple(shards), name, missing
        self.vocab_size, self.digest = shards[0].vocab_size, shards[0].softmax_sha256
        threads = CALLS_AT_ONCE * len(shards)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="logitsieve-shards")

    def rows(self, hidden: ArrayLike) -> Float32:
        """`hidden` [B, D] or [D] as float32 [B, D]; InvalidRequest names what is wrong with it."""
        return as_hidden(hidden)

    def engine_for(
        self, target: Target, rows: int, k: int, *, draws: bool = False
    ) -> ShardedEngine:
        """The engine that puts requests with these keywords to the shards."""
        return ShardedEngine(self, self.keywords_of(target))

    def keywords_of(self, target: Mapping[str, object]) -> dict[str, Any]:
        """Return the keywords of a `Target` that each shard is asked with; InvalidRequest."""
        names = Target.__annotations__.keys()
        asked: dict[str, Any] = {name: value for name, value in target.items() if name in names}
        if (model := asked.pop("model", "")) not in ("", self.name):
            raise ModelNotFound(f"model: got {model}, here is only {self.name!r}", "model")
        if (normalizer := asked.get("normalizer")) not in (None, *SUMMABLE):
            raise InvalidRequest("normalizer", repr(normalizer), ", ".join(SUMMABLE))
        return asked

    def put(self, question: Callable[[Part], T], parts: Sequence[Part]) -> list[T]:
        """The answers of shards; every call has ended by then, also where one of them fails."""
        left = time_left()
        deadline = None if left is None else monotonic() + left

        def ask(part: Part) -> T:
            with ending_by(deadline):
                return question(part)

        futures = [self._pool.submit(ask, part) for part in parts]
        wait(futures)
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None and not isinstance(error, Unavailable | DeadlineExceeded):
                raise error
        for part, error in zip(parts, errors, strict=True):
            if error is not None:
                raise _Lost(part.shard) from error
        return [future.result() for future in futures]

    def close(self) -> None:
        """Close the decoders of the shards; no call may be under way."""
        self._pool.shutdown()
        for shard in self.shards:
            close: Callable[[], object] = getattr(shard.decoder, "close", lambda: None)
            close()


class _Request(NamedTuple):
    """Rows of hidden, and the shards with their parts of the constraints."""

    decoder: ShardedDecoder
    hidden: Float32  # [B, D]
    parts: Sequence[Part]
    started: int  # ns

    def ask(self, question: Callable[[Part], Found]) -> Found:
        """The answers of all shards, joined; log Z has no upper bound where rows are missing."""
        found = joined(self.decoder.put(question, self.parts))
        if len(self.parts) < len(self.decoder.shards):
            found.log_z[:, 2] = inf
        return found

    def remaining(self, k: int = 1) -> Int64:
        """[B] ids that may be answered; InvalidRequest names a row in which fewer than k are."""
        left = np.asarray(np.sum([part.remaining for part in self.parts], axis=0))
        row = int(np.argmin(left))
        if not left[row]:
            got = f"nothing left in row {row}"
            raise InvalidRequest("constraints", got, "at least one id for each row")
        if left[row] < k:
            raise InvalidRequest("k", k, f"at most {left[row]}, which are left in row {row}")
        return left

    def origin(self, found: Found, log_z: PrintedLogZ, normalizer: str = "") -> Answer:
        """The origin of a merged reply; head and knobs are those that one of the shards names."""
        asked, one = {part.shard.first for part in self.parts}, found.answer
        head, knobs, named = (one.head, one.knobs, one.normalizer) if one else ("", {}, "")
        lost = [shard for shard in self.decoder.shards if shard.first not in asked]
        return Answer(
            self.decoder.name, "", self.decoder.digest, head, found.exact & (not lost),
            found.scanned.astype(np.int32), found.fallback, knobs, normalizer or named, *log_z,
            compute_ns=perf_counter_ns() - self.started,
            rows_missing=tuple(RowRange(shard.first, shard.rows) for shard in lost),
        )  # fmt: skip


class ShardedEngine:
    """The shards, asked with the keywords of one `Target`; see `Engine`."""

    def __init__(self, decoder: ShardedDecoder, target: Mapping[str, Any]) -> None:
        self._decoder, self._target = decoder, target
        log_z = ("normalizer", "width")
        self._plain = {each: target[each] for each in target if each not in log_z}
        closest = target.get("normalizer") or EXACT.name  # as logits follow from it
        self._closely = {**target, "normalizer": closest}

    def topk(self, hidden: ArrayLike, k: int, constraints: Constraints | None = None) -> TopKReply:
        """The k best ids of each row of `hidden` [B, D]; InvalidRequest if not valid."""
        hidden, k = self._decoder.rows(hidden), checked_k(k, self._decoder.vocab_size)
        _check_finite(hidden)

        def answer(request: _Request) -> TopKReply:
            request.remaining(k)
            found = request.ask(lambda part: part.best(hidden, k, self._target))
            best, log_z = best_of(found, k), PrintedLogZ(None)
            if self._target.get("normalizer") or self._target.get("width"):
                log_z = _log_z(found).printed()
            return TopKReply(best.ids, best.logits.astype(np.float32), request.origin(best, log_z))

        return self._answer(answer, hidden, constraints)

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """logit - log Z of `targets` [B, T]; never `exact`, as logits come rounded."""
        _check_finite(hidden)
        check_ids(targets, self._decoder.vocab_size, "targets")

        def answer(request: _Request) -> ScoreReply:
            request.remaining()
            found = request.ask(lambda part: part.score(hidden, targets, self._target))
            log_z, (rows, count) = _log_z(found), targets.shape
            log_probs, _ = log_z.log_probs(found.logits.max(axis=1), targets)
            found = found._replace(exact=np.zeros(rows, np.bool_), scanned=np.full(rows, count))
            return ScoreReply(log_probs, request.origin(found, log_z.printed()))

        return self._answer(answer, hidden, constraints)

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """Draws by the noise of the whole softmax: those of the shards, or from what filters leave.

        Each draw is the candidate with the largest perturbed logit.
        """
        _check_finite(hidden)
        how = sampling
        if how.temperature == 0.0:
            how = how._replace(top_k=1, temperature=1.0)
        filtered = how.top_k > 0 or how.top_p < 1.0 or how.min_p > 0.0

        def answer(request: _Request) -> SampleReply:
            if filtered:
                found = self._left(request, how)
                lists = [each[:, None] for each in found[:3]]
                log_z = LogZ.estimate(np.logaddexp.reduce(found.logits, axis=1), 1.0)
            else:
                request.remaining()
                found = request.ask(lambda part: part.draws(hidden, how, self._closely))
                lists, log_z = [each.swapaxes(1, 2) for each in found[:3]], _log_z(found)
            ids, logits, sure = winners(lists, how)
            log_probs, _ = log_z.log_probs(logits, ids)
            found = found._replace(exact=found.exact & sure)
            normalizer = CANDIDATES.name if filtered else ""
            return SampleReply(ids, log_probs, request.origin(found, log_z.printed(), normalizer))

        return self._answer(answer, hidden, constraints)

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """The best continuations of the hypotheses at the rows of `hidden` [B, D]."""
        _check_finite(hidden)
        check_ids(np.array(beams.eos_ids, np.int32), self._decoder.vocab_size, "eos_ids")
        live, k = np.flatnonzero(~beams.finished), min(beams.beams_out, self._decoder.vocab_size)
        sets = None if constraints is None else constraints.for_rows(len(hidden)).take(live)

        def answer(request: _Request) -> BeamStepReply:
            nothing, everything = np.zeros((len(live), 1), np.int32), request.hidden

            def question(part: Part) -> Found:
                log_z = Part.of(part.shard, None, len(live)).score(
                    everything, nothing, self._closely
                )
                best = part.best(everything, k, self._plain)
                return best._replace(log_z=log_z.log_z, answer=log_z.answer)

            found = request.ask(question)
            best, log_z = best_of(found, k), _log_z(found)
            log_z.fields[:, LOW] -= best.off.max(axis=1)
            log_z.fields[:, HIGH] += best.off.max(axis=1)
            provenance = Provenance(best.exact, best.scanned.astype(np.int32), best.fallback)
            lists = BestLogits(best.ids, best.logits, provenance)
            step = choose_pairs(beams, live, k, lists, (best.ids >= 0).sum(axis=1), log_z)
            best = best._replace(**step.provenance._asdict())
            return BeamStepReply(*step[:5], request.origin(best, step.log_z))

        return self._answer(answer, hidden[live], sets)

    def _answer(
        self,
        answer: Callable[[_Request], T],
        hidden: Float32,
        constraints: Constraints | None,
    ) -> T:
        """Put a request to all shards; where allowed, again to the others if one is lost."""
        decoder, rows, started = self._decoder, len(hidden), perf_counter_ns()
        sets = None if constraints is None else constraints.for_rows(rows)
        parts = [Part.of(shard, sets, rows) for shard in decoder.shards]
        while True:
            try:
                return answer(_Request(decoder, hidden, parts, started))
            except _Lost as lost:
                parts = [part for part in parts if part.shard is not lost.shard]
                if decoder.missing == "refuse" or not parts:
                    raise ShardUnavailable(lost.shard.first, lost.shard.rows) from lost.__cause__

    def _left(self, request: _Request, how: Sampling) -> Found:
        """The ids [B, K] that filters leave, best first, with logits at the temperature.

        Logits come rounded, so what top-p and min-p leave is never `exact`.
        """
        limits = np.minimum(request.remaining(), how.top_k or self._decoder.vocab_size)
        looked = limits if how.top_k else np.minimum(limits, FIRST)
        every, hidden, scale = np.zeros((len(limits), 1)), request.hidden, 1.0 / how.temperature
        if how.top_p < 1.0 and not how.top_k:
            one, target = how._replace(samples=1), {**self._plain, "normalizer": EXACT.name}
            every = request.ask(lambda part: part.draws(hidden, one, target)).log_z[:, :1]
        while True:
            ask = partial(Part.best, hidden=hidden, k=looked, target=self._plain)
            best = best_of(request.ask(ask), looked)
            logits, whole = best.logits * scale, looked == limits
            total = np.where(whole[:, None], np.logaddexp.reduce(logits, axis=1)[:, None], every)
            chances = np.exp(logits - total)
            kept = (best.ids >= 0) & (chances >= how.min_p * chances[:, :1])
            if how.top_p < 1.0:
                kept &= np.cumsum(chances, axis=1) - chances < how.top_p
            kept[:, 0] = True
            ended = whole | (kept.sum(axis=1) < looked)
            if ended.all():
                break
            looked = np.where(ended, looked, np.minimum(GROWTH * looked, limits))
        ids, logits = np.where(kept, best.ids, np.int32(-1)), np.where(kept, logits, -inf)
        exact = best.exact & (how.top_p == 1.0 and how.min_p == 0.0)
        return best._replace(ids=ids, logits=logits, off=best.off * scale, exact=exact)


def _check_finite(hidden: Float32) -> None:
    """InvalidRequest for the first row of hidden [B, D] that is not finite.

    Shards would count rows among those that they are asked.
    """
    if not (finite := np.isfinite(hidden).all(axis=1)).all():
        refuse_row(int(finite.argmin()))


def open_sharded(
    path: Path | str, *, missing: Missing = "refuse", **options: Any
) -> ShardedDecoder:
    """The decoder over a folder that `split_index` wrote; `options` are those of `open_index`.

    InvalidRequest if shards are missing or of different softmaxes; IndexUnreadable.
    """
    folder, shards = Path(path) / SHARDS_FOLDER, []
    for number in sorted(int(each.name) for each in folder.glob("[1-9]*") if each.name.isdecimal()):
        index = open_index(folder / str(number), **options)
        if (whole := index.manifest.shard) is None:
            got = f"{index.path}, a whole index"
            raise InvalidRequest("shards", got, "shards, as `split_index` writes them")
        place = whole.first, index.vocab_size, whole.vocab_size, whole.softmax_sha256
        shards.append(Shard(LocalDecoder(index), *place))
    return ShardedDecoder(shards, name=Path(path).absolute().parent.name, missing=missing)


def _log_z(found: Found) -> LogZ:
    """log Z that the shards found together."""
    fields = np.zeros((len(found.log_z), FIELDS))
    fields[:, [VALUE, LOW, HIGH]] = found.log_z
    return LogZ(fields, bounded=bool(np.isfinite(fields[:, LOW]).all()))
