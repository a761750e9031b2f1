"""A shard: rows of a softmax that a decoder answers for. What it is asked, and how answers merge.

Logits of answers are float32. An order between rows of two shards that this rounding leaves open is
not proven, so the merged row is not `exact`.

Shape letters: B batch rows, D hidden size, K answers, M ids a row, N draws, S shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints, IdLists, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Answer, Bool, Float32, Float64, Int32, Int64
from logitsieve.decoding.decoder import LocalDecoder
from logitsieve.decoding.log_z import LogZ
from logitsieve.decoding.logit_edits import among, check_ids, keys_of
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, VALUE

HALF_PLACE = 2.0**-24  # relative error of a logit that is rounded to float32
LOG_SUM_ERROR = 2.0**-48  # of a log of a sum in float64: far more than its roundings
SETS = ("banned", "allowed", "biased", "repeated")


class Shard(NamedTuple):
    """Rows `first` .. `first` + `rows` - 1 of a softmax, whose ids the decoder counts from 0."""

    decoder: Decoder
    first: int
    rows: int
    vocab_size: int  # V of the whole softmax
    softmax_sha256: str = ""  # of the whole softmax
    model: str = ""  # the decoder's name for the shard

    @classmethod
    def of(cls, decoder: LocalDecoder) -> Shard:
        """The shard that an open index holds; InvalidRequest if the index is no shard."""
        index, whole = decoder.index, decoder.index.manifest.shard
        if whole is None:
            got = f"{index.path}, a whole index"
            raise InvalidRequest("shards", got, "shards, as `split_index` writes them")
        return cls(decoder, whole.first, index.vocab_size, whole.vocab_size, whole.softmax_sha256)


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


class Part(NamedTuple):
    """A shard's part of a request's constraints."""

    shard: Shard
    constraints: Constraints | None  # in the shard's ids, made by `for_rows`
    remaining: Int64  # [B] ids that may be answered

    @classmethod
    def of(cls, shard: Shard, constraints: Constraints | None, rows: int) -> Part:
        """The part of constraints that `for_rows` made for so many rows of hidden."""
        if constraints is None:
            return cls(shard, None, np.full(rows, shard.rows))
        own = {name: _within(getattr(constraints, name), shard) for name in SETS}
        biased, kept = own.pop("biased")
        sets: dict[str, Any] = {name: ids for name, (ids, _) in own.items()}
        bias = None if biased is None else np.asarray(constraints.bias, np.float32)[kept]
        part = replace(constraints, **sets, biased=biased, bias=bias)
        banned = np.unique(_keys(part.banned, shard.rows))
        if part.allowed is None:
            remaining = shard.rows - np.bincount(banned // shard.rows, minlength=rows)
        else:
            left = np.setdiff1d(_keys(part.allowed, shard.rows), banned)
            remaining = np.bincount(left // shard.rows, minlength=rows)
        return cls(shard, part, remaining)

    def only(self, ids: Int32) -> tuple[Part, Int32]:
        """The part in which ids [B, M] of the softmax alone are left, and these ids in the shard.

        An id that the shard does not have, or that must not be answered, becomes -1.
        """
        size, local = self.shard.rows, ids - np.int32(self.shard.first)
        keys = np.arange(len(ids))[:, None] * size + local
        mine, named = (local >= 0) & (local < size), self.constraints or Constraints()
        if named.allowed is not None:
            mine &= among(keys, np.sort(_keys(named.allowed, size)))
        mine &= ~among(keys, np.sort(_keys(named.banned, size)))
        listed = np.unique(keys[mine])
        offsets = np.searchsorted(listed, np.arange(len(ids) + 1) * size).astype(np.int32)
        sets = IdSets(offsets, (listed % size).astype(np.int32))
        part = replace(named.for_rows(len(ids)), allowed=sets)
        remaining = np.diff(offsets).astype(np.int64)
        return Part(self.shard, part, remaining), np.where(mine, local, np.int32(-1))

    def take(self, rows: Int64) -> Constraints | None:
        """The constraints of the given rows of hidden."""
        return None if self.constraints is None else self.constraints.take(rows)


class Best(NamedTuple):
    """The best ids of each row, of a shard or of all."""

    ids: Int32  # [B, K] of the whole softmax, -1 beyond the row's last
    logits: Float64  # [B, K] float32 numbers, -inf beyond
    exact: Bool  # [B]
    scanned: Int64  # [B]
    log_z: Float64  # [B, 3] value, low, high; -inf where no id is left
    answer: Answer | None  # of one of the replies


def best_of(part: Part, hidden: Float32, k: int | Int64, target: Mapping[str, Any]) -> Best:
    """The k ([B]) best ids of a shard, or as many as it has; rows that want equally many go in one
    call.
    """
    rows, counts = len(hidden), np.minimum(k, part.remaining)
    width = max(1, int(counts.max()))
    found = Best(
        np.full((rows, width), -1, np.int32),
        np.full((rows, width), -np.inf),
        np.ones(rows, np.bool_),
        np.zeros(rows, np.int64),
        np.full((rows, 3), -np.inf),
        None,
    )
    for count in np.unique(counts[counts > 0]).tolist():
        own = np.flatnonzero(counts == count)
        reply = part.shard.decoder.topk(
            hidden[own], count, constraints=part.take(own), **asked(part.shard, target)
        )
        found.ids[own, :count] = reply.ids + np.int32(part.shard.first)
        found.logits[own, :count] = reply.logits
        found.exact[own], found.scanned[own] = reply.answer.exact, reply.answer.scanned
        found.log_z[own] = log_z_of(reply.answer)
        found = found._replace(answer=reply.answer)
    return found


def logits_of(part: Part, hidden: Float32, ids: Int32, target: Mapping[str, Any]) -> Float64:
    """[B, M] logits of ids of the whole softmax; -inf for those that the shard may not answer."""
    only, local = part.only(ids)
    best = best_of(only, hidden, only.shard.rows, target)
    size, logits = part.shard.rows, np.full(ids.shape, -np.inf)
    found = best.ids >= 0
    keys = (np.arange(len(ids))[:, None] * size + best.ids - part.shard.first)[found]
    order = np.argsort(keys)
    wanted = np.arange(len(ids))[:, None] * size + local
    mine = local >= 0
    places = np.searchsorted(keys[order], wanted[mine])
    logits[mine] = best.logits[found][order][places]
    return logits


def merged(parts: Sequence[Best], k: int | Int64) -> Best:
    """The k ([B]) best of the shards' k best, in the order of the shards where logits are equal."""
    owners = np.repeat(np.arange(len(parts)), [part.ids.shape[1] for part in parts])
    logits = np.concatenate([part.logits for part in parts], axis=1)
    ids = np.concatenate([part.ids for part in parts], axis=1)
    order = np.argsort(-logits, axis=1, kind="stable")
    ids, logits = np.take_along_axis(ids, order, 1), np.take_along_axis(logits, order, 1)
    owners, width = owners[order], min(int(np.max(k)), ids.shape[1])
    wanted = np.broadcast_to(np.arange(ids.shape[1]) < np.reshape(k, (-1, 1)), ids.shape)
    tied = (logits[:, :-1] == logits[:, 1:]) & (owners[:, :-1] != owners[:, 1:])
    least = np.where(wanted & (ids >= 0), logits, np.inf).min(axis=1, keepdims=True)
    tied &= (logits[:, :-1] >= least) & (ids[:, 1:] >= 0)  # runs that go on beyond k, too
    exact = np.all([part.exact for part in parts], axis=0) & ~tied.any(axis=1)
    return Best(
        np.where(wanted, ids, np.int32(-1))[:, :width],
        np.where(wanted, logits, -np.inf)[:, :width],
        exact,
        np.sum([part.scanned for part in parts], axis=0),
        np.empty(0),
        next((part.answer for part in parts if part.answer is not None), None),
    )


def log_z_of(answer: Answer) -> Float64:
    """[B, 3] value, low and high of an answer's log Z; NaN without one, infinite if not proven."""
    rows = len(answer.exact)
    found = np.tile(np.array([np.nan, -np.inf, np.inf]), (rows, 1))
    for column, values in enumerate((answer.log_z, answer.log_z_low, answer.log_z_high)):
        if values is not None:
            found[:, column] = values
    return found


def sum_log_z(parts: Sequence[Float64], scale: float = 1.0, whole: bool = True) -> LogZ:
    """log Z over all shards from theirs [B, 3]; not `whole`: rows are missing, so without a bound
    from above.
    """
    sums = np.logaddexp.reduce(np.array(parts), axis=0)
    fields, off = np.zeros((len(sums), FIELDS)), LOG_SUM_ERROR * (1.0 + np.abs(sums))
    fields[:, VALUE], fields[:, LOW] = sums[:, 0], sums[:, 1] - off[:, 1]
    fields[:, HIGH] = sums[:, 2] + off[:, 2] if whole else np.inf
    return LogZ(fields, scale, bool(np.isfinite(sums[:, 1]).all()))


def asked(shard: Shard, target: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a request, as the shard's decoder is asked with them."""
    return {**target, "model": shard.model}


def checked_constraints(
    constraints: Constraints | None, rows: int, vocab_size: int
) -> Constraints | None:
    """The constraints for so many rows; InvalidRequest names an id that is not in the softmax."""
    if constraints is None:
        return None
    sets = constraints.for_rows(rows)
    for name in SETS:
        if (ids := getattr(sets, name)) is not None:
            check_ids(ids.ids, vocab_size, f"constraints.{name}")
    return sets


def _within(sets: IdLists | None, shard: Shard) -> tuple[IdSets | None, Bool]:
    """The ids of a shard's rows, counted from 0, and which of `sets.ids` these are."""
    if sets is None:
        return None, np.empty(0, np.bool_)
    assert isinstance(sets, IdSets), "made by for_rows"
    inside = (sets.ids >= shard.first) & (sets.ids < shard.first + shard.rows)
    ends = np.concatenate([[0], np.cumsum(inside)]).astype(np.int32)
    return IdSets(ends[sets.offsets], sets.ids[inside] - np.int32(shard.first)), inside


def _keys(sets: IdLists | None, size: int) -> Int64:
    if sets is None:
        return np.empty(0, np.int64)
    assert isinstance(sets, IdSets), "made by for_rows"
    return keys_of(sets.offsets, sets.ids, size)
