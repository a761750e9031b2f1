"""Requests to shards, each a decoder of some rows of a softmax, and how answers are merged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from logitsieve.api.constraints import SETS, Constraints, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.mask import packed, unpacked
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Answer, Bool, Float32, Float64, Int32, Int64, RowRange
from logitsieve.decoding.logit_edits import check_ids, checked_mask, keys_of_sets
from logitsieve.decoding.normalizers import LogZ
from logitsieve.index.manifest import Manifest
from logitsieve.kernels.sampling.gumbel import gumbel_noise
from logitsieve.kernels.sampling.lists import cut_lists
from logitsieve.kernels.topk.merge import LOW, VALUE

HALF_PLACE = 2.0**-24  # relative error of rounding to the nearest float32; rounding down has twice
FLOAT64_ERROR = 2.0**-50  # relative error of a few operations in float64
LARGEST_NOISE = 64.0  # no Gumbel noise is larger


class Shard(NamedTuple):
    """Rows `first` .. `first` + `rows` - 1 of a softmax; its decoder numbers them from 0."""

    decoder: Decoder
    first: int
    rows: int
    vocab_size: int  # of the whole softmax
    softmax_sha256: str = ""  # of the whole softmax
    model: str = ""  # the decoder's name for the shard

    @classmethod
    def of(cls, decoder: Decoder, manifest: Manifest) -> Self:
        if (full := manifest.shard) is None:
            got = f"a whole index, {manifest.digest[:12]}"
            raise InvalidRequest("shards", got, "shards, as `split_index` writes them")
        place = full.first, manifest.vocab_size, full.vocab_size, full.softmax_sha256
        return cls(decoder, *place)


def check_shards(shards: Sequence[Shard]) -> None:
    """InvalidRequest names the first shard that does not continue the one before it."""
    row = 0
    for number, shard in enumerate(shards):
        got, full = shard[3:5], shards[0][3:5]
        if shard.first != row or got != full:
            allowed = f"rows from {row}, no gap, no overlap, of V and hash {full}"
            raise InvalidRequest(f"shards[{number}]", f"rows from {shard.first} of {got}", allowed)
        row += shard.rows
    if not shards or row != shards[0].vocab_size:
        raise InvalidRequest("shards", f"{row} rows", "all rows of one softmax")


class ShardCandidates(NamedTuple):
    """Ids that one shard, or all together, found for each row."""

    ids: Int32  # [B, K] of the whole softmax, -1 beyond a row's end
    logits: Float64  # [B, K] at the temperature; -inf beyond a row's end
    logit_error: Float64  # [B] bound on the error of a row's logits
    log_z: Float64  # [B, 3] value, low, high; NaN if not requested, -inf if no id is allowed
    answer: Answer


Reply = tuple[Any, Any, Any, Answer]  # ids in the shard, logits, logit_error and answer
NO_ANSWER = Answer(
    "", "", "", "", np.zeros(0, np.bool_), np.zeros(0, np.int32), np.zeros(0, np.bool_), 0.0
)


class ShardRequest(NamedTuple):
    """A shard, and the part of a request's constraints that concerns it."""

    shard: Shard
    constraints: Constraints | None  # made by `for_rows`, with the shard's ids
    left: Int64  # [B] number of allowed ids

    @classmethod
    def of(cls, shard: Shard, constraints: Constraints | None, rows: int) -> Self:
        """Select the shard's ids of constraints from `for_rows`; InvalidRequest beyond V."""
        size = shard.rows
        if constraints is None:
            return cls(shard, None, np.full(rows, size))
        own: dict[str, Any] = {}
        for name in SETS:
            if (sets := getattr(constraints, name)) is None:
                continue
            check_ids(sets.ids, shard.vocab_size, f"constraints.{name}")
            inside = (sets.ids >= shard.first) & (sets.ids < shard.first + size)
            ends = np.concatenate([[0], np.cumsum(inside)]).astype(np.int32)
            own[name] = IdSets(ends[sets.offsets], sets.ids[inside] - np.int32(shard.first))
            if name == "biased":
                own["bias"] = np.asarray(constraints.bias, np.float32)[inside]
        mask, bits = checked_mask(constraints.mask, shard.vocab_size), None
        if mask is not None:
            bits = unpacked(mask, shard.vocab_size)[:, shard.first : shard.first + size]
            own["mask"] = packed(bits)
        part = replace(constraints, **own)
        banned = np.unique(keys_of_sets(part.banned, size, "constraints.banned"))
        if part.allowed is None and bits is None:
            return cls(shard, part, size - np.bincount(banned // size, minlength=rows))
        allowed = keys_of_sets(part.allowed, size, "constraints.allowed")
        if bits is not None:
            every = np.flatnonzero(bits)
            allowed = every if part.allowed is None else np.intersect1d(allowed, every)
        allowed = np.setdiff1d(allowed, banned)
        return cls(shard, part, np.bincount(allowed // size, minlength=rows))

    def best(self, hidden_states: Float32, k: int, spec: Mapping[str, Any]) -> ShardCandidates:
        """Return the shard's k best ids, or all allowed ones if they are fewer."""

        def question(rows: Int64, count: int, **keywords: Any) -> Reply:
            ids, logits, answer = self.shard.decoder.topk(hidden_states[rows], count, **keywords)
            return ids, logits, HALF_PLACE * np.abs(logits).max(axis=1), answer

        return self._ask(question, np.minimum(k, self.left), k, spec)

    def score(self, hidden_states: Float32, ids: Int32, spec: Mapping[str, Any]) -> ShardCandidates:
        """Return log Z of the shard's allowed ids, and its logits among `ids` [B, T]."""
        local = ids - np.int32(self.shard.first)
        mine = (local >= 0) & (local < self.shard.rows)

        def question(rows: Int64, count: int, **keywords: Any) -> Reply:
            token_ids = np.where(mine, local, 0)[rows]
            log_probs, answer = self.shard.decoder.score(hidden_states[rows], token_ids, **keywords)
            logits, logit_error = _logits(log_probs, answer)
            return token_ids, np.where(mine[rows], logits, -np.inf), logit_error, answer

        counts = np.where(self.left > 0, ids.shape[1], 0)
        return self._ask(question, counts, ids.shape[1], spec)

    def draws(
        self, hidden_states: Float32, how: Sampling, spec: Mapping[str, Any]
    ) -> ShardCandidates:
        """Return the shard's draws [B, N] at the temperature, without filters."""

        def question(rows: Int64, count: int, **keywords: Any) -> Reply:
            keywords |= {"seeds": how.seeds[rows], "step": how.step, "temperature": how.temperature}
            ids, log_probs, _, answer = self.shard.decoder.sample(
                hidden_states[rows], count, replace=how.replace, **keywords
            )
            return ids, *_logits(log_probs, answer), answer

        most = np.where(self.left > 0, how.samples, 0)
        counts = most if how.replace else np.minimum(most, self.left)
        return self._ask(question, counts, how.samples, spec)

    def _ask(
        self, question: Callable[..., Reply], counts: Int64, width: int, spec: Mapping[str, Any]
    ) -> ShardCandidates:
        """Call question(rows, count, **spec, model, constraints) once for each of `counts`, [B].

        Rows with equal counts share a call, and rows with a count of 0 need none. K is `width`.
        """
        rows = len(counts)
        ids, logits = np.full((rows, width), -1, np.int32), np.full((rows, width), -np.inf)
        logit_error, log_z = np.zeros(rows), np.full((rows, 3), -np.inf)
        proven, fallback = counts == 0, np.zeros(rows, np.bool_)
        scanned, answer, max_error = np.zeros(rows, np.int32), NO_ANSWER, 0.0
        for count in np.unique(counts[counts > 0]).tolist():
            own, to = np.flatnonzero(counts == count), slice(count)
            sets = None if self.constraints is None else self.constraints.take(own)
            keywords = {**spec, "model": self.shard.model, "constraints": sets}
            local, logits[own, to], logit_error[own], answer = question(own, count, **keywords)
            ids[own, to], log_z[own] = local + np.int32(self.shard.first), _interval_of(answer)
            proven[own], scanned[own] = answer.proven, answer.scanned
            fallback[own], max_error = answer.fallback, max(max_error, *answer.max_errors.tolist())
        answer = answer._replace(
            proven=proven, scanned=scanned, fallback=fallback, max_error=max_error
        )
        return ShardCandidates(ids, logits, logit_error, log_z, answer)


def _logits(log_probs: Float32, answer: Answer) -> tuple[Float64, Float64]:
    value, low, high = _interval_of(answer).T
    printed = 4 * HALF_PLACE * np.abs(log_probs).max(axis=1)
    return log_probs + value[:, None], 2 * (high - low) + printed


def _interval_of(answer: Answer) -> Float64:
    """Return log Z's value, low and high, [B, 3]: NaN without one, infinite if unproven."""
    columns = (answer.log_z, np.nan), (answer.log_z_low, -np.inf), (answer.log_z_high, np.inf)
    rows = len(answer.proven)
    return np.stack([np.full(rows, none) if v is None else v for v, none in columns], axis=1)


def merge(found: Sequence[ShardCandidates], lost: tuple[RowRange, ...]) -> ShardCandidates:
    """Stack the lists of shards, [B, S, K], and add up log Z; no row is proven if some are lost."""
    with np.errstate(invalid="ignore"):  # log Z is NaN if it was not requested
        log_z = np.logaddexp.reduce([each.log_z for each in found], axis=0)
    log_z[:, 1:] += len(found) * FLOAT64_ERROR * (1.0 + np.abs(log_z[:, 1:])) * [-1.0, 1.0]
    if lost:
        log_z[:, 2] = np.inf
    ids = np.stack([each.ids for each in found], axis=1)
    logits = np.stack([each.logits for each in found], axis=1)
    logit_error = np.max([each.logit_error for each in found], axis=0)
    answers = [each.answer for each in found]
    answer = next((each for each in answers if each.head), answers[0])._replace(
        proven=np.all([each.proven for each in answers], axis=0) & (not lost),
        scanned=np.sum([each.scanned for each in answers], axis=0, dtype=np.int32),
        fallback=np.any([each.fallback for each in answers], axis=0),
        max_error=1.0 if lost else min(1.0, sum(each.max_error for each in answers)),
        rows_missing=lost,
    )
    return ShardCandidates(ids, logits, logit_error, log_z, answer)


def proven_where(sure: Bool, found: ShardCandidates) -> ShardCandidates:
    """Withdraw the proof of rows that are not `sure`, [B], and `max_error` if there are any."""
    answer = found.answer
    max_error = answer.max_error if sure.all() else 1.0
    return found._replace(answer=answer._replace(proven=answer.proven & sure, max_error=max_error))


def log_z_of(found: ShardCandidates) -> LogZ:
    fields = np.pad(found.log_z, ((0, 0), (VALUE, 0)))
    return LogZ(fields, bounded=bool(np.isfinite(fields[:, LOW]).all()))


def best_of(found: ShardCandidates, k: int) -> ShardCandidates:
    """Return the k best ids of merged lists, [B, K], with ties in the order of the shards.

    Logits are rounded to float32, so a row is not proven if equal ones of two shards decide it.
    """
    rows, shards, width = found.ids.shape
    lists: list[Any] = [each.reshape(rows, shards * width) for each in found[:2]]
    order = np.argsort(-lists[1], axis=1, kind="stable")
    ids, logits = (np.take_along_axis(each, order, 1) for each in lists)
    owners = order // width
    tied = (logits[:, :-1] == logits[:, 1:]) & (owners[:, :-1] != owners[:, 1:])
    tied &= (logits[:, 1:] >= logits[:, k - 1 : k]) & (ids[:, 1:] >= 0)  # also runs beyond k
    ids, logits = (np.take_along_axis(each, order[:, :k], 1) for each in lists)
    return proven_where(~tied.any(axis=1), found._replace(ids=ids, logits=logits))


def filtered(best: ShardCandidates, how: Sampling) -> ShardCandidates:
    """Apply the temperature, top-p and min-p to the best ids [B, K]; no filtered row is proven."""
    logits, logit_error = best.logits / how.temperature, best.logit_error / how.temperature
    (rows, k), lengths = logits.shape, np.empty(len(logits), np.int64)
    cut_lists(np.arange(rows + 1) * k, logits.ravel(), 1.0, *how.filters, lengths)
    kept = (best.ids >= 0) & (np.arange(k) < np.maximum(lengths, 1)[:, None])
    ids, logits = np.where(kept, best.ids, np.int32(-1)), np.where(kept, logits, -np.inf)
    sure = np.full(len(ids), not how.filtered)
    return proven_where(sure, ShardCandidates(ids, logits, logit_error, best.log_z, best.answer))


# Ids [B, N], their logits, their perturbed logits if without replacement, and which rows are sure.
Winners = tuple[Int32, Float64, Float32 | None, Bool]


def winners(ids: Int32, logits: Float64, logit_error: Float64, how: Sampling) -> Winners:
    """Find the winner of each of N draws among candidates [B, N or 1, K]."""
    (rows, _, width), draws = ids.shape, np.arange(how.samples)
    won, values = (np.empty((rows, how.samples), kind) for kind in (np.int32, np.float64))
    sure, noise = np.empty(rows, np.bool_), np.empty((how.samples, width))
    for row in range(rows):
        listed, own = (np.broadcast_to(each[row], noise.shape) for each in (ids, logits))
        gumbel_noise(how.seeds[row], how.step, np.ascontiguousarray(listed), noise)
        perturbed = own + noise
        best = perturbed.argmax(axis=1)
        won[row], values[row] = listed[draws, best], own[draws, best]
        least = perturbed[draws, best] - _gap(own, logit_error[row])
        perturbed[draws, best] = -np.inf
        sure[row] = (perturbed.max(axis=1) < least).all()
    return won, values, None, sure


def distinct_winners(ids: Int32, logits: Float64, logit_error: Float64, how: Sampling) -> Winners:
    """Find the N best of candidates [B, 1, K] by the noise of the first draw, best first."""
    rows, _, width = ids.shape
    count = min(how.samples, width)
    won = np.full((rows, how.samples), -1, np.int32)
    values, perturbed = np.full((2, rows, how.samples), -np.inf)
    sure, noise = np.empty(rows, np.bool_), np.empty((1, width))
    for row in range(rows):
        gumbel_noise(how.seeds[row], how.step, np.ascontiguousarray(ids[row]), noise)
        noisy, own = logits[row, 0] + noise[0], logits[row, 0]
        order = np.lexsort((ids[row, 0], -noisy))
        best = order[:count]
        best = best[ids[row, 0, best] >= 0]
        won[row, : best.size], values[row, : best.size] = ids[row, 0, best], own[best]
        perturbed[row, : best.size] = noisy[best]
        ranked = noisy[order[: count + 1]]
        ranked = ranked[ranked > -np.inf]
        sure[row] = (-np.diff(ranked) > _gap(own, logit_error[row])).all()
    return won, values, perturbed.astype(np.float32), sure


def _gap(logits: Float64, logit_error: float) -> float:
    """Return a difference of perturbed logits above which their order is sure."""
    largest = np.abs(logits[logits > -np.inf]).max() + LARGEST_NOISE
    return float(2 * (logit_error + FLOAT64_ERROR * largest))
