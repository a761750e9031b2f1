"""Follow grammars with no mask over V, or with one where few ids decide nothing.

The first allowed one of draws without replacement is a draw from the masked softmax: both are the
allowed id with the largest x_i / T + G_i. Likewise the first allowed of the best ids is the best
allowed one. After MORE refusals, and where filters need more, the mask lists the allowed ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Any, NamedTuple, Unpack, cast

import numpy as np

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec, SampleOptions, check_keywords
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float32, Int32, Int64, SampleReply, TopKReply, offsets_of
from logitsieve.grammar.matcher import Matcher, allowed_ids

FEW, MORE = 8, 64  # ids that a matcher is asked about before its mask
LISTED = 512  # best ids that may hold all that top-p leaves of the allowed ones
WIDTH = 0.01  # nats of log Z for top-p
ROUNDED = 1e-5  # of a mass: above the rounding of logits and log Z to float32
# The options of draws that the caller may give; the others are set here.
DRAWS = tuple(name for name in Sampling._fields if name not in ("samples", "log_probs", "replace"))


class Followed(NamedTuple):
    """The next id of each row, and its cost."""

    ids: Int32  # [B]
    scanned: Int32  # [B] exact logits computed
    proven: Bool  # [B] proven to be the masked softmax's
    masked: Bool  # [B] by the mask


class _Rows(NamedTuple):
    """Rows of a request, and those of its options that belong to rows."""

    hidden_states: Float32
    constraints: Constraints | None
    how: Sampling

    def take(self, rows: Int64) -> _Rows:
        constraints = self.constraints and self.constraints.take(rows)
        how = self.how._replace(seeds=self.how.seeds[rows])
        return _Rows(self.hidden_states[rows], constraints, how)

    def only(self, field: str, lists: Sequence[Int32]) -> _Rows:
        """Return the rows with ids `allowed` or `banned` instead of those that are now."""
        offsets = offsets_of([len(ids) for ids in lists]).astype(np.int32)
        sets: Any = {"allowed": None, "banned": None, field: IdSets(offsets, np.concatenate(lists))}
        return self._replace(constraints=replace(self.constraints or Constraints(), **sets))

    def ask(self, decoder: Decoder, count: int, spec: ModelSpec) -> TopKReply | SampleReply:
        """Return the `count` best ids of each row, or draws without replacement."""
        constraints, how = self.constraints, self.how
        if how.temperature == 0:
            return decoder.topk(self.hidden_states, count, constraints=constraints, **spec)
        drawn: Any = {name: getattr(how, name) for name in DRAWS}
        drawn |= {**spec, "log_probs": False, "replace": False}
        return decoder.sample(self.hidden_states, count, constraints=constraints, **drawn)


def next_ids(
    decoder: Decoder,
    hidden_states: Float32,
    matchers: Sequence[Matcher],
    constraints: Constraints | None = None,
    **options: Unpack[SampleOptions],
) -> Followed:
    """Return an id for each row of `hidden_states` [B, D] that its matcher allows.

    It is the draw of `Decoder.sample` by the same options over the ids that the mask allows, or at
    temperature 0 the best of these. Filters apply to these alone. A forced id asks no decoder.
    InvalidRequest names `grammar` where mask and constraints leave nothing.
    """
    count, given = len(matchers), dict[str, Any](options)
    drawing: Any = {name: given.pop(name) for name in DRAWS if name in given}
    check_keywords(ModelSpec, given)
    how, spec = Sampling.of(count, 1, drawing), cast("ModelSpec", given)
    sets = None if constraints is None else constraints.for_rows(count)
    rows = _Rows(hidden_states, sets, how)
    ids, scanned = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    made = Followed(ids, scanned, np.ones(count, np.bool_), np.zeros(count, np.bool_))
    for row, matcher in enumerate(matchers):
        if (forced := matcher.forced()) and not _constrained(sets, row):
            ids[row] = forced[0]
    listed = sets is None or sets.allowed is None
    if listed and (how.temperature == 0 or not _filters(how)):
        for most in (FEW, MORE):
            _first_allowed(decoder, rows, matchers, min(most, matchers[0].vocab_size), spec, made)
    if (left := np.flatnonzero(ids < 0)).size:
        others = [matchers[row] for row in left.tolist()]
        _by_mask(decoder, rows.take(left), others, left, spec, made)
    return made


def _constrained(sets: Constraints | None, row: int) -> bool:
    """Return whether constraints may forbid an id of a row."""
    if sets is None:
        return False
    given = [each for each in (sets.banned, sets.allowed) if isinstance(each, IdSets)]
    return any(each.offsets[row] < each.offsets[row + 1] for each in given)


def _filters(how: Sampling) -> bool:
    return how.top_k > 0 or how.filtered


def _first_allowed(
    decoder: Decoder, rows: _Rows, matchers: Sequence[Matcher], most: int, spec: ModelSpec,
    made: Followed,
) -> None:  # fmt: skip
    """Fill the ids of rows without one, where one of `most` ids in order is allowed."""
    open_ = np.flatnonzero(made.ids < 0)
    if not open_.size:
        return
    some = rows.take(open_)
    reply = some.ask(decoder, _least_left(some, most, matchers[0].vocab_size), spec)
    _charge(made, open_, reply)
    for row, listed in zip(open_.tolist(), reply.ids, strict=True):
        found = _allowed_of(matchers[row], listed)
        made.ids[row] = found[0] if found.size else -1


def _least_left(rows: _Rows, most: int, vocab_size: int) -> int:
    """Return `most`, or as few ids as constraints may leave."""
    sets = rows.constraints
    if sets is None or not isinstance(sets.banned, IdSets):
        return most
    return max(1, min(most, vocab_size - int(np.diff(sets.banned.offsets).max())))


def _allowed_of(matcher: Matcher, ids: Int32) -> Int32:
    ids = ids[ids >= 0]
    return ids[np.array(matcher.allows(ids.tolist()), np.bool_)] if ids.size else ids


def _charge(made: Followed, rows: Int64, reply: TopKReply | SampleReply) -> None:
    made.scanned[rows] += reply.answer.scanned
    made.proven[rows] &= reply.answer.proven


def _by_mask(
    decoder: Decoder, rows: _Rows, matchers: Sequence[Matcher], places: Int64, spec: ModelSpec,
    made: Followed,
) -> None:  # fmt: skip
    """Fill the ids of rows by lists of all that filters may leave, or of all that is allowed.

    Where that is most of the vocabulary, the others are banned.
    """
    allowed, masked = [], np.zeros(len(matchers), np.bool_)
    heavy = _heaviest(decoder, rows, matchers, places, spec, made)
    for row, matcher in enumerate(matchers):
        named = heavy[row]
        if named is None:
            named, masked[row] = allowed_ids(matcher), True
            named = _within(rows.constraints, row, named)
        if not named.size:
            got = f"a text where it and the constraints leave no id in row {places[row]}"
            raise InvalidRequest("grammar", got, "at least one id at each step")
        allowed.append(named)
    made.masked[places] = masked
    every = np.arange(matchers[0].vocab_size, dtype=np.int32)
    most = np.array([2 * ids.size > every.size for ids in allowed])
    for field, group in (("allowed", np.flatnonzero(~most)), ("banned", np.flatnonzero(most))):
        if group.size:
            lists = [allowed[row] for row in group]
            if field == "banned":
                lists = [np.setdiff1d(every, ids, assume_unique=True) for ids in lists]
            reply = rows.take(group).only(field, lists).ask(decoder, 1, spec)
            _charge(made, places[group], reply)
            made.ids[places[group]] = reply.ids[:, 0]


def _within(sets: Constraints | None, row: int, ids: Int32) -> Int32:
    """Return the ids that a row's constraints leave."""
    if sets is not None and isinstance(sets.allowed, IdSets):
        own = slice(sets.allowed.offsets[row], sets.allowed.offsets[row + 1])
        ids = np.intersect1d(ids, sets.allowed.ids[own])
    if sets is not None and isinstance(sets.banned, IdSets):
        own = slice(sets.banned.offsets[row], sets.banned.offsets[row + 1])
        ids = np.setdiff1d(ids, sets.banned.ids[own])
    return ids


def _heaviest(
    decoder: Decoder, rows: _Rows, matchers: Sequence[Matcher], places: Int64, spec: ModelSpec,
    made: Followed,
) -> list[Int32 | None]:  # fmt: skip
    """Return of each row the allowed ones of the best ids, or None.

    They surely hold all that filters leave of the allowed ids, and filters leave the same of them.
    """
    how, size = rows.how, matchers[0].vocab_size
    if how.temperature == 0 or not _filters(how) or (rows.constraints and rows.constraints.allowed):
        return [None] * len(matchers)
    most = max(MORE, min(how.top_k, LISTED)) if how.top_k else LISTED
    if size <= most:
        return [None] * len(matchers)
    plain: Any = {**spec, "normalizer": None, "width": None}
    count = _least_left(rows, most, size)
    best = decoder.topk(rows.hidden_states, count, constraints=rows.constraints, **plain)
    _charge(made, places, best)
    masses = None
    if how.top_p < 1.0 and not how.top_k:
        asked: Any = {**spec, "width": WIDTH, "temperature": how.temperature, "seeds": how.seeds}
        answer = decoder.sample(rows.hidden_states, 1, constraints=rows.constraints, **asked).answer
        masses = answer.log_z_high
    found = []
    for row, matcher in enumerate(matchers):
        named = _allowed_of(matcher, best.ids[row])
        logits = best.logits[row][np.isin(best.ids[row], named)]
        high = None if masses is None else float(masses[row])
        sure = named.size > 0 and _holds(best.logits[row], logits, high, how)
        found.append(named[: how.top_k or None] if sure else None)
    return found


def _holds(listed: Float32, allowed: Float32, log_z: float | None, how: Sampling) -> bool:
    """Return whether all that filters leave of the allowed ids is surely among the listed ones.

    `listed` are the logits of the best ids, and `allowed` those of the allowed ones, best first.
    `log_z` is at least that of all ids at the temperature.
    """
    if how.top_k:  # the best so many alone are filtered further
        return bool(allowed.size >= how.top_k)
    scaled = (allowed.astype(np.float64) - allowed[0]) / how.temperature
    weights = np.exp(scaled)
    if how.top_p == 1.0:
        least = (float(listed[-1]) - float(allowed[0])) / how.temperature
        return least < how.least_log_share - ROUNDED
    assert log_z is not None, "asked for top-p"
    everything = exp(min(log_z - float(allowed[0]) / how.temperature, 700.0))
    others = np.exp((listed.astype(np.float64) - allowed[0]) / how.temperature).sum()
    total = weights.sum()
    rest = max(0.0, everything * (1.0 + ROUNDED) - others * (1.0 - ROUNDED))
    before = np.cumsum(weights) - weights
    few = int((before < how.top_p * total * (1.0 - ROUNDED)).sum())
    many = int((before < how.top_p * (total + rest) * (1.0 + ROUNDED)).sum())
    return few == many and bool(before[-1] + weights[-1] >= how.top_p * (total + rest))
