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
from typing import Any, Literal, NamedTuple, TypeVar, Unpack

import numpy as np

from logitsieve.api import requests
from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import (
    DEFAULTS,
    BeamOptions,
    SampleOptions,
    Target,
    check_keywords,
    shows_keywords,
)
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
    Float64,
    Int64,
    Provenance,
    RowRange,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.beam import choose_pairs
from logitsieve.decoding.constrained import BestLogits
from logitsieve.decoding.decoder import LocalDecoder
from logitsieve.decoding.log_z import LogZ, PrintedLogZ
from logitsieve.decoding.logit_edits import check_ids
from logitsieve.decoding.normalizers import CANDIDATES, STEPPING
from logitsieve.decoding.sharded_draws import Cut, cut, winners
from logitsieve.decoding.shards import (
    HALF_PLACE,
    Best,
    Part,
    Shard,
    asked,
    best_of,
    check_shards,
    checked_constraints,
    log_z_of,
    logits_of,
    merged,
    sum_log_z,
)
from logitsieve.heads._base.head import checked_k
from logitsieve.index.reader import open_index
from logitsieve.index.split import SHARDS_FOLDER
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW
from logitsieve.utils.deadline import ending_by, time_left
from logitsieve.utils.hidden import as_hidden

T = TypeVar("T")
Missing = Literal["refuse", "answer"]

CALLS_AT_ONCE = 8  # of each shard
FIRST, GROWTH = 64, 8  # ids looked at where top-k names no number, and how many times more next
PROVING = ("certified", "exact", "candidates")  # normalizers whose log Z can be added up


NOTHING = Best(
    np.empty((0, 1), np.int32), np.empty((0, 1)), np.empty(0, np.bool_), np.empty(0, np.int64),
    np.empty((0, 3)), None,
)  # fmt: skip


class _Lost(Exception):
    """A shard that did not answer."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard


class _Request(NamedTuple):
    """A checked request, and the shards that it is put to."""

    hidden: Float32  # [B, D]
    constraints: Constraints | None  # made by `for_rows`
    target: Mapping[str, Any]  # keywords of `Target` without a model
    shards: Sequence[Shard]
    started: int  # ns

    def parts(self) -> list[Part]:
        """Each shard with its part of the constraints; InvalidRequest if a row has no id left."""
        parts = [Part.of(shard, self.constraints, len(self.hidden)) for shard in self.shards]
        left = np.sum([part.remaining for part in parts], axis=0)
        if not left.all():
            got = f"nothing left in row {np.argmin(left)}"
            raise InvalidRequest("constraints", got, "at least one id for each row")
        return parts


class ShardedDecoder:
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

    @shows_keywords(Target)
    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; see `Decoder.topk`."""
        check_keywords(Target, target)
        k = checked_k(k, self.vocab_size)

        def answer(request: _Request) -> TopKReply:
            parts = request.parts()
            left = np.sum([part.remaining for part in parts], axis=0)
            if (row := int(np.argmin(left))) is not None and left[row] < k:
                allowed = f"at most {left[row]}, which are left in row {row}"
                raise InvalidRequest("k", k, allowed)
            found = self._each(parts, lambda part: best_of(part, request.hidden, k, request.target))
            best = merged(found, k)
            log_z = None
            if request.target.get("normalizer") or request.target.get("width"):
                log_z = self._sum(request, [each.log_z for each in found])
            origin = self._origin(request, _provenance(best), best.answer, log_z)
            return TopKReply(best.ids, best.logits.astype(np.float32), origin)

        return self._answer(answer, hidden, constraints, target)

    @shows_keywords(Target)
    def score(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> ScoreReply:
        """Log-probabilities of `targets`; see `Decoder.score`. Never `exact`: logits are rounded.

        Each is within the interval of log Z and 2^-24 of the logit.
        """
        check_keywords(Target, target)
        hidden = as_hidden(hidden)
        ids = requests.score_targets(targets, len(hidden))
        check_ids(ids, self.vocab_size, "targets")

        def ask(part: Part, request: _Request) -> tuple[Float64, Float64, Answer | None]:
            log_z, answer = _log_z(part, request.hidden, request.target)
            plain = _without_log_z(request.target)
            return logits_of(part, request.hidden, ids, plain), log_z, answer

        def answer(request: _Request) -> ScoreReply:
            found = self._each(request.parts(), lambda part: ask(part, request))
            logits, answers = np.max([each[0] for each in found], axis=0), [e[2] for e in found]
            log_z = self._sum(request, [each[1] for each in found])
            log_probs, _ = log_z.log_probs(logits, ids)
            rows, nothing = len(ids), np.zeros(len(ids), np.bool_)
            provenance = Provenance(nothing, np.full(rows, ids.shape[1], np.int32), nothing)
            return ScoreReply(log_probs, self._origin(request, provenance, _any(answers), log_z))

        return self._answer(answer, hidden, constraints, target)

    @shows_keywords(SampleOptions)
    def sample(
        self,
        hidden: ArrayLike,
        samples: int = 1,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleReply:
        """Draws for each row, of the noise that one softmax has; see `Decoder.sample`."""
        hidden = as_hidden(hidden)
        how = requests.sampling(len(hidden), samples, options)
        if how.temperature == 0.0:
            how = how._replace(top_k=1)
        lists = how.top_k > 0 or how.top_p < 1.0 or how.min_p > 0.0
        draw = self._from_lists if lists else self._from_all
        return self._answer(lambda request: draw(request, how), hidden, constraints, options)

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
        """One step of a beam search; see `Decoder.beam_step`."""
        hidden = as_hidden(hidden)
        beams = requests.beams(len(hidden), scores, beams_in, beams_out, options)
        check_ids(np.array(beams.eos_ids, np.int32), self.vocab_size, "eos_ids")
        return self._answer(
            lambda request: self._step(request, beams), hidden, constraints, options
        )

    def close(self) -> None:
        """Close the decoders of the shards; no call may be under way."""
        self._pool.shutdown()
        for shard in self.shards:
            close: Callable[[], object] = getattr(shard.decoder, "close", lambda: None)
            close()

    def _answer(
        self,
        answer: Callable[[_Request], T],
        hidden: ArrayLike,
        constraints: Constraints | None,
        options: Mapping[str, Any],
    ) -> T:
        """Put a request to all shards, and again to those that answer if that is to be done."""
        started, rows = perf_counter_ns(), as_hidden(hidden)
        target = {name: options[name] for name in Target.__annotations__ if name in options}
        if (model := target.pop("model", "")) not in ("", self.name):
            raise ModelNotFound(f"model: got {model}, here is only {self.name!r}", "model")
        normalizer = target.get("normalizer")
        if normalizer is not None and normalizer not in PROVING:
            raise InvalidRequest("normalizer", repr(normalizer), ", ".join(PROVING))
        sets = checked_constraints(constraints, len(rows), self.vocab_size)
        shards = list(self.shards)
        while True:
            try:
                return answer(_Request(rows, sets, target, shards, started))
            except _Lost as lost:
                if self.missing == "refuse" or len(shards) == 1:
                    raise ShardUnavailable(lost.shard.first, lost.shard.rows) from lost.__cause__
                shards.remove(lost.shard)

    def _each(self, parts: Sequence[Part], question: Callable[[Part], T]) -> list[T]:
        """The answers of all shards; every call has ended by then, also where one fails."""
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

    def _sum(self, request: _Request, parts: Sequence[Float64], scale: float = 1.0) -> LogZ:
        return sum_log_z(parts, scale, whole=len(request.shards) == len(self.shards))

    def _origin(
        self,
        request: _Request,
        provenance: Provenance,
        answer: Answer | None,
        log_z: LogZ | None,
        normalizer: str | None = None,
    ) -> Answer:
        """The origin of a merged reply; `answer` is that of one of the shards."""
        lost = [shard for shard in self.shards if shard not in request.shards]
        value, low, high, error = PrintedLogZ(None) if log_z is None else log_z.printed()
        return Answer(
            self.name, "", self.digest, answer.head if answer else "",
            provenance.exact & (not lost), provenance.scanned, provenance.fallback,
            answer.knobs if answer else {},
            answer.normalizer if answer and normalizer is None else normalizer or "",
            value, low, high, error, 0, perf_counter_ns() - request.started,
            tuple(RowRange(shard.first, shard.rows) for shard in lost),
        )  # fmt: skip

    def _from_all(self, request: _Request, how: Sampling) -> SampleReply:
        """Each draw is the largest of the shards' draws, perturbed logits being compared."""

        def ask(part: Part) -> tuple[Best, Float64]:
            drawn = _drawn(part, request.hidden, how, request.target)
            plain = _without_log_z(request.target)
            return drawn, logits_of(part, request.hidden, drawn.ids, plain)

        found = self._each(request.parts(), ask)
        ids = np.stack([drawn.ids for drawn, _ in found], axis=2)  # [B, N, S]
        logits = np.stack([logits for _, logits in found], axis=2)
        won = winners(ids, logits, how)
        places = won.places[..., None]
        chosen = np.ascontiguousarray(np.take_along_axis(ids, places, 2)[..., 0])
        own = np.ascontiguousarray(np.take_along_axis(logits, places, 2)[..., 0])
        log_z = self._sum(request, [drawn.log_z for drawn, _ in found], 1.0 / how.temperature)
        log_probs, _ = log_z.log_probs(own, chosen)
        exact = np.all([drawn.exact for drawn, _ in found], axis=0) & won.sure
        scanned = np.sum([drawn.scanned for drawn, _ in found], axis=0).astype(np.int32)
        provenance = Provenance(exact, scanned, np.zeros(len(exact), np.bool_))
        origin = self._origin(request, provenance, _any([d.answer for d, _ in found]), log_z)
        return SampleReply(chosen, log_probs, origin)

    def _from_lists(self, request: _Request, how: Sampling) -> SampleReply:
        """Draws from the ids that filters leave, which are listed first, best first."""
        parts = request.parts()
        limits = np.sum([part.remaining for part in parts], axis=0)
        limits = np.minimum(limits, how.top_k) if how.top_k else limits
        looked = limits if how.top_k else np.minimum(limits, FIRST)
        plain, bounds = _without_log_z(request.target), self._unlisted(request, parts, how, "")
        while True:
            ask = partial(best_of, hidden=request.hidden, k=looked, target=plain)
            best = merged(self._each(parts, ask), looked)
            cuts = cut(best.logits, looked, looked == limits, how, bounds)
            if cuts.ended.all():
                break
            looked = np.where(cuts.ended, looked, np.minimum(GROWTH * looked, limits))
        if not cuts.sure.all():
            closer = self._unlisted(request, parts, how, "exact")
            cuts = cut(best.logits, looked, looked == limits, how, closer)
        return self._listed(request, how, best, cuts)

    def _listed(self, request: _Request, how: Sampling, best: Best, cuts: Cut) -> SampleReply:
        kept = np.arange(best.ids.shape[1]) < cuts.lengths[:, None]
        ids, logits = np.where(kept, best.ids, np.int32(-1)), np.where(kept, best.logits, -np.inf)
        won, scale = winners(ids, logits, how), 1.0 / (how.temperature or 1.0)
        value = np.logaddexp.reduce(logits * scale, axis=1)
        log_z = LogZ.estimate(value, scale)
        chosen = np.ascontiguousarray(np.take_along_axis(ids, won.places, 1))
        log_probs, _ = log_z.log_probs(np.take_along_axis(logits, won.places, 1), chosen)
        provenance = _provenance(best._replace(exact=best.exact & cuts.sure & won.sure))
        origin = self._origin(request, provenance, best.answer, log_z, CANDIDATES.name)
        return SampleReply(chosen, log_probs, origin)

    def _unlisted(
        self, request: _Request, parts: Sequence[Part], how: Sampling, normalizer: str
    ) -> Float64:
        """[B, 2] bounds of log Z at the temperature, of all that there is to choose from."""
        if how.top_k or how.top_p == 1.0:
            return np.tile([-inf, inf], (len(request.hidden), 1))
        one = how._replace(samples=1, top_p=1.0, min_p=0.0)
        target = _without_log_z(request.target) | ({"normalizer": normalizer} if normalizer else {})
        found = self._each(parts, lambda part: _drawn(part, request.hidden, one, target).log_z)
        return self._sum(request, found).fields[:, LOW:]

    def _step(self, request: _Request, beams: Beams) -> BeamStepReply:
        live = np.flatnonzero(~beams.finished)
        hidden, k = request.hidden[live], min(beams.beams_out, self.vocab_size)
        sets = None if request.constraints is None else request.constraints.take(live)
        log_z_target = {"normalizer": STEPPING} | dict(request.target)
        plain = _without_log_z(request.target)

        def ask(shard: Shard) -> tuple[Best, Float64, Answer | None]:
            best = best_of(Part.of(shard, sets, len(hidden)), hidden, k, plain)
            return best, *_log_z(Part.of(shard, None, len(hidden)), hidden, log_z_target)

        everything = [Part.of(shard, None, len(hidden)) for shard in request.shards]
        found = self._each(everything, lambda part: ask(part.shard)) if live.size else []
        if found:
            best = merged([each[0] for each in found], k)
            log_z = self._sum(request, [each[1] for each in found])
        else:
            best, log_z = NOTHING, LogZ(np.empty((0, FIELDS)))
        counts = (best.ids >= 0).sum(axis=1)
        off = HALF_PLACE * np.where(best.ids < 0, 0.0, np.abs(best.logits)).max(axis=1)
        log_z.fields[:, LOW] -= off
        log_z.fields[:, HIGH] += off
        lists = BestLogits(best.ids, best.logits, _provenance(best))
        step = choose_pairs(beams, live, k, lists, counts, log_z)
        answer = _any([each[2] for each in found])
        origin = self._origin(request, step.provenance, answer, None)
        value, low, high, error = step.log_z
        origin = origin._replace(log_z=value, log_z_low=low, log_z_high=high, log_z_error=error)
        return BeamStepReply(*step[:5], origin)


def open_sharded(
    path: Path | str, *, missing: Missing = "refuse", **options: Any
) -> ShardedDecoder:
    """The decoder over a folder that `split_index` wrote; `options` are those of `open_index`.

    InvalidRequest if shards are missing or of different softmaxes; IndexUnreadable.
    """
    folder = Path(path) / SHARDS_FOLDER
    numbers = sorted(int(each.name) for each in folder.glob("[1-9]*") if each.name.isdecimal())
    shards = [
        Shard.of(LocalDecoder(open_index(folder / str(number), **options))) for number in numbers
    ]
    return ShardedDecoder(shards, name=Path(path).absolute().parent.name, missing=missing)


def _without_log_z(target: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in target.items() if name not in ("normalizer", "width")}


def _provenance(best: Best) -> Provenance:
    return Provenance(best.exact, best.scanned.astype(np.int32), np.zeros(len(best.ids), np.bool_))


def _any(answers: Sequence[Answer | None]) -> Answer | None:
    return next((answer for answer in answers if answer is not None), None)


def _log_z(part: Part, hidden: Float32, target: Mapping[str, Any]) -> tuple[Float64, Answer | None]:
    """log Z [B, 3] of what is left of a shard, -inf of nothing; the origin of the answer."""
    log_z, rows = np.full((len(hidden), 3), -inf), np.flatnonzero(part.remaining)
    if not rows.size:
        return log_z, None
    first, keywords = np.zeros((rows.size, 1), np.int32), asked(part.shard, target)
    reply = part.shard.decoder.score(hidden[rows], first, constraints=part.take(rows), **keywords)
    log_z[rows] = log_z_of(reply.answer)
    return log_z, reply.answer


def _drawn(part: Part, hidden: Float32, how: Sampling, target: Mapping[str, Any]) -> Best:
    """A shard's own draws [B, N], -1 where it has nothing left; their logits are not filled."""
    rows: Int64 = np.flatnonzero(part.remaining)
    shape, every = (len(hidden), how.samples), np.ones(len(hidden), np.bool_)
    found = Best(
        np.full(shape, -1, np.int32), np.empty(shape), every, np.zeros(len(hidden), np.int64),
        np.full((len(hidden), 3), -inf), None,
    )  # fmt: skip
    if not rows.size:
        return found
    reply = part.shard.decoder.sample(
        hidden[rows], how.samples, constraints=part.take(rows), seeds=how.seeds[rows],
        step=how.step, temperature=how.temperature or DEFAULTS["temperature"],
        **asked(part.shard, target),
    )  # fmt: skip
    found.ids[rows] = reply.ids + np.int32(part.shard.first)
    found.exact[rows], found.scanned[rows] = reply.answer.exact, reply.answer.scanned
    found.log_z[rows] = log_z_of(reply.answer)
    return found._replace(answer=reply.answer)
