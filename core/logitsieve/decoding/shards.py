"""A shard, some rows of a softmax behind a decoder: questions to it, and answers of all merged.

Shape letters: B batch rows, D hidden size, K ids of a list, T targets, N draws, S shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints, IdLists, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Answer, Bool, Float32, Float64, Int32, Int64
from logitsieve.decoding.logit_edits import check_ids, keys_of
from logitsieve.kernels.sampling.gumbel import gumbel_noise

HALF_PLACE = 2.0**-24  # relative error of a number that is rounded to float32; down: twice that
ROUNDED = 2.0**-50  # relative error of a few operations in float64
SETS = ("banned", "allowed", "biased", "repeated")


class Shard(NamedTuple):
    """Rows `first` .. `first` + `rows` - 1 of a softmax; the decoder counts their ids from 0."""

    decoder: Decoder
    first: int
    rows: int
    vocab_size: int  # V of the whole softmax
    softmax_sha256: str = ""  # of the whole softmax
    model: str = ""  # the decoder's name for the shard


def check_shards(shards: Sequence[Shard]) -> None:
    """InvalidRequest names the first shard that does not continue the ones before it."""
    if not shards:
        raise InvalidRequest("shards", "none", "at least one")
    row, whole = 0, shards[0]
    for number, shard in enumerate(shards):
        field = f"shards[{number}]"
        if (shard.vocab_size, shard.softmax_sha256) != (whole.vocab_size, whole.softmax_sha256):
            got = f"rows of another softmax: V = {shard.vocab_size}, {shard.softmax_sha256[:12]}"
            raise InvalidRequest(field, got, f"V = {whole.vocab_size}, {whole.softmax_sha256[:12]}")
        if shard.first != row or shard.rows < 1:
            got = f"{shard.rows} rows from {shard.first}"
            raise InvalidRequest(field, got, f"at least one row, from {row}: no gap, no overlap")
        row += shard.rows
    if row != whole.vocab_size:
        raise InvalidRequest("shards", f"rows 0 .. {row - 1}", f"all {whole.vocab_size} rows")


class Found(NamedTuple):
    """A shard's answer, or those of all side by side: the first three fields are [B, S, K] then."""

    ids: Int32  # [B, K] of the whole softmax, -1 for none
    logits: Float64  # [B, K] at the temperature; -inf for none
    off: Float64  # [B, K] at least their error
    exact: Bool  # [B]
    scanned: Int64  # [B]
    fallback: Bool  # [B]
    log_z: Float64  # [B, 3] value, low, high; -inf where no id is left
    answer: Answer | None  # of one of the calls


# Ids in the shard, their logits and the errors of these, as Found has them.
Reply = tuple[Any, Any, Any, Answer]


class Part(NamedTuple):
    """A shard, and its part of a request's constraints."""

    shard: Shard
    constraints: Constraints | None  # in the shard's ids, made by `for_rows`
    remaining: Int64  # [B] ids that may be answered

    @classmethod
    def of(cls, shard: Shard, constraints: Constraints | None, rows: int) -> Part:
        """The part of constraints that `for_rows` made for that many rows of hidden.

        InvalidRequest names an id that is not in the whole softmax.
        """
        if constraints is None:
            return cls(shard, None, np.full(rows, shard.rows))
        own: dict[str, Any] = {}
        for name in SETS:
            if (sets := getattr(constraints, name)) is None:
                continue
            check_ids(sets.ids, shard.vocab_size, f"constraints.{name}")
            inside = (sets.ids >= shard.first) & (sets.ids < shard.first + shard.rows)
            ends = np.concatenate([[0], np.cumsum(inside)]).astype(np.int32)
            own[name] = IdSets(ends[sets.offsets], sets.ids[inside] - np.int32(shard.first))
            if name == "biased":
                own["bias"] = np.asarray(constraints.bias, np.float32)[inside]
        part, size = replace(constraints, **own), shard.rows
        banned = np.unique(_keys(part.banned, size))
        left = np.setdiff1d(_keys(part.allowed, size), banned)
        if part.allowed is None:
            return cls(shard, part, size - np.bincount(banned // size, minlength=rows))
        return cls(shard, part, np.bincount(left // size, minlength=rows))

    def best(self, hidden: Float32, k: int | Int64, target: Mapping[str, Any]) -> Found:
        """The k ([B]) best ids of the shard, or as many as are left in it."""

        def question(rows: Int64, count: int, **keywords: Any) -> Reply:
            ids, logits, answer = self.shard.decoder.topk(hidden[rows], count, **keywords)
            return ids, logits, HALF_PLACE * np.abs(logits.astype(np.float64)), answer

        return self._ask(question, np.minimum(k, self.remaining), int(np.max(k)), target)

    def score(self, hidden: Float32, ids: Int32, target: Mapping[str, Any]) -> Found:
        """log Z of what is left of the shard, and the logits of ids [B, T] of the softmax."""
        local = ids - np.int32(self.shard.first)
        mine = (local >= 0) & (local < self.shard.rows)

        def question(rows: Int64, count: int, **keywords: Any) -> Reply:
            targets = np.where(mine, local, 0)[rows]
            log_probs, answer = self.shard.decoder.score(hidden[rows], targets, **keywords)
            logits, off = _logits(log_probs, answer)
            return local[rows], np.where(mine[rows], logits, -np.inf), off, answer

        counts = np.where(self.remaining > 0, ids.shape[1], 0)
        return self._ask(question, counts, ids.shape[1], target)

    def draws(self, hidden: Float32, how: Sampling, target: Mapping[str, Any]) -> Found:
        """The shard's own draws [B, N] at the temperature, without any other filter."""

        def question(rows: Int64, count: int, **keywords: Any) -> Reply:
            keywords |= {"seeds": how.seeds[rows], "step": how.step, "temperature": how.temperature}
            ids, log_probs, answer = self.shard.decoder.sample(hidden[rows], count, **keywords)
            return ids, *_logits(log_probs, answer), answer

        counts = np.where(self.remaining > 0, how.samples, 0)
        return self._ask(question, counts, how.samples, target)

    def _ask(
        self, question: Callable[..., Reply], counts: Int64, width: int, target: Mapping[str, Any]
    ) -> Found:
        """The replies to `question`(rows, count, and as keywords the constraints and `target`).

        Rows with equal counts [B] are asked in one call, those with 0 in none. K is `width`.
        """
        rows = len(counts)
        found = Found(
            np.full((rows, width), -1, np.int32), np.full((rows, width), -np.inf),
            np.zeros((rows, width)), np.ones(rows, np.bool_), np.zeros(rows, np.int64),
            np.zeros(rows, np.bool_), np.full((rows, 3), -np.inf), None,
        )  # fmt: skip
        for count in np.unique(counts[counts > 0]).tolist():
            own, to = np.flatnonzero(counts == count), slice(count)
            sets = None if self.constraints is None else self.constraints.take(own)
            keywords = {**target, "model": self.shard.model, "constraints": sets}
            ids, found.logits[own, to], found.off[own, to], answer = question(
                own, count, **keywords
            )
            found.ids[own, to] = ids + np.int32(self.shard.first)
            found.exact[own], found.scanned[own] = answer.exact, answer.scanned
            found.fallback[own], found.log_z[own] = answer.fallback, _log_z_of(answer)
            found = found._replace(answer=answer)
        return found


def joined(parts: Sequence[Found]) -> Found:
    """The answers of all shards side by side, and log Z of all their rows."""
    with np.errstate(invalid="ignore"):  # NaN where no log Z was asked for
        sums = np.logaddexp.reduce([part.log_z for part in parts], axis=0)
    off = len(parts) * ROUNDED * (1.0 + np.abs(sums[:, 1:]))
    sums[:, 1:] += off * [-1.0, 1.0]
    return Found(
        np.stack([part.ids for part in parts], axis=1),
        np.stack([part.logits for part in parts], axis=1),
        np.stack([part.off for part in parts], axis=1),
        np.all([part.exact for part in parts], axis=0),
        np.sum([part.scanned for part in parts], axis=0),
        np.any([part.fallback for part in parts], axis=0),
        sums,
        next((part.answer for part in parts if part.answer is not None), None),
    )


def best_of(found: Found, k: int | Int64) -> Found:
    """The k ([B]) best of joined lists, in the order of the shards where logits are equal.

    Rounding keeps order: a row is not `exact` only where equal logits of two shards leave it open.
    """
    rows, shards, width = found.ids.shape
    flat: list[Any] = [lists.reshape(rows, shards * width) for lists in found[:3]]
    order = np.argsort(-flat[1], axis=1, kind="stable")
    ids, logits, off = (np.take_along_axis(lists, order, 1) for lists in flat)
    owners, most = order // width, int(np.max(k))
    wanted = (np.arange(ids.shape[1]) < np.reshape(k, (-1, 1))) & (ids >= 0)
    least = np.where(wanted, logits, np.inf).min(axis=1, keepdims=True)
    tied = (logits[:, :-1] == logits[:, 1:]) & (owners[:, :-1] != owners[:, 1:])
    tied &= (logits[:, :-1] >= least) & (ids[:, 1:] >= 0)  # runs that go on beyond k, too
    return found._replace(
        ids=np.where(wanted, ids, np.int32(-1))[:, :most],
        logits=np.where(wanted, logits, -np.inf)[:, :most],
        off=np.where(wanted, off, 0.0)[:, :most],
        exact=found.exact & ~tied.any(axis=1),
    )


def winners(lists: Sequence[np.ndarray], how: Sampling) -> tuple[Int32, Float64, Bool]:
    """Each draw's winner among its candidates [B, N, K], or [B, 1, K] for all draws alike.

    `lists` are their ids, logits and errors. Return ids and logits [B, N], and [B] whether the
    errors leave none of the draws open.
    """
    (rows, _, width), draws = lists[0].shape, np.arange(how.samples)
    shape = how.samples, width
    ids, logits = (np.empty((rows, how.samples), kind) for kind in (np.int32, np.float64))
    sure = np.empty(rows, np.bool_)
    for row in range(rows):
        listed, own, off = (np.broadcast_to(each[row], shape) for each in lists)
        noise = np.empty(shape)
        gumbel_noise(how.seeds[row], how.step, np.ascontiguousarray(listed), noise)
        values = own + noise
        best = values.argmax(axis=1)
        ids[row], logits[row] = listed[draws, best], own[draws, best]
        spread = off + np.where(listed < 0, 0.0, ROUNDED * (np.abs(own) + np.abs(noise)))
        least = (values - spread)[draws, best]
        values += spread
        values[draws, best] = -np.inf
        sure[row] = (values.max(axis=1) < least).all()
    return ids, logits, sure


def _logits(log_probs: Float32, answer: Answer) -> tuple[Float64, Float64]:
    """Logits by log-probabilities and log Z, and at least their errors.

    log Z, and the one in the log-probabilities, lie in the proven interval.
    """
    value, low, high = (each[:, None] for each in _log_z_of(answer).T)
    logits = log_probs + value
    off = 2 * (high - low) + 4 * HALF_PLACE * np.abs(log_probs.astype(np.float64))
    return logits, np.where(np.isfinite(logits), off, 0.0)


def _log_z_of(answer: Answer) -> Float64:
    """[B, 3] value, low and high of an answer's log Z; NaN without one, infinite if not proven."""
    found = np.tile(np.array([np.nan, -np.inf, np.inf]), (len(answer.exact), 1))
    for column, values in enumerate((answer.log_z, answer.log_z_low, answer.log_z_high)):
        if values is not None:
            found[:, column] = values
    return found


def _keys(sets: IdLists | None, size: int) -> Int64:
    if sets is None:
        return np.empty(0, np.int64)
    assert isinstance(sets, IdSets), "made by for_rows"
    return keys_of(sets.offsets, sets.ids, size)
