"""One step of a beam search over several groups at once; nothing is kept between steps.

A pair's score is that of its hypothesis plus logit - log Z. Where the interval in which log Z is
proven to lie leaves open which pairs of a group are best, or their order, log Z of the group's rows
is found anew: in float64, to some 1e-12, then in double-double arithmetic, to 2^-76, and the pairs
are compared as rational numbers. Rows with the same bits of hidden have the same log Z, whatever it
is. Scores of other rows that are within 2^-75 of each other count as equal.

Wu et al. 2016, Google's Neural Machine Translation System, equation 14: the length penalty.

Shape letters: B rows (hypotheses), D hidden size, V vocabulary, G groups, N tokens a hypothesis,
K pairs a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, cast

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.requests import Beams
from logitsieve.api.results import (
    Bool,
    Float32,
    Float64,
    Int32,
    Int64,
    Provenance,
    rounded_down,
)
from logitsieve.decoding.constrained import BestLogits, best_edited, best_unedited
from logitsieve.decoding.log_z import LogZ, PrintedLogZ
from logitsieve.decoding.logit_edits import LARGEST, check_ids, edits_of
from logitsieve.decoding.normalizers import EXACT, Normalizer, Query
from logitsieve.heads.exact import ExactHead
from logitsieve.kernels.sampling.double_double import ERROR
from logitsieve.kernels.topk.merge import FIELDS, ROUNDED, TOP, VALUE, best_pairs


class BeamChoice(NamedTuple):
    """The chosen continuations, and their source."""

    parents: Int32  # [G, K] -1 where a group has too few pairs
    tokens: Int32  # [G, K]
    scores: Float32  # [G, K]
    ranks: Float32  # [G, K]
    finished: Bool  # [G, K]
    provenance: Provenance  # scanned: 0 for finished hypotheses
    log_z: PrintedLogZ  # NaN for finished hypotheses


class _Lists(NamedTuple):
    """The tokens that each hypothesis may continue with, best first."""

    ids: Int32  # [B, N]
    logits: Float64  # [B, N]
    counts: Int64  # [B]
    provenance: Provenance


class _Pairs(NamedTuple):
    parents: Int32  # [G, K]
    places: Int32  # [G, K] within the parent's list
    doubtful: Bool  # [G] the bounds of log Z leave open which pairs, or their order


class _Step(NamedTuple):
    """The input of the choice of pairs: hypotheses, their tokens, and log Z."""

    scores: Float64  # [B]
    divisors: Float64  # [B] of scores, to rank by
    twins: Int64  # [B] equal for rows that have the same log Z; -1 for finished ones, whose is 0
    lists: _Lists
    log_z: Float64  # [B, 4] TOP, VALUE, LOW, HIGH


def beam_step(
    query: Query, beams: Beams, constraints: Constraints | None, normalizer: Normalizer
) -> BeamChoice:
    """The best continuations of the hypotheses at the rows of the query.

    log Z is over all V whatever the constraints say. InvalidRequest names the field at fault.
    """
    softmax, rows = query.index.softmax, len(query.hidden)
    check_ids(np.array(beams.eos_ids, np.int32), softmax.vocab_size, "eos_ids")
    live = np.flatnonzero(~beams.finished)
    query = query._replace(k=min(beams.beams_out, softmax.vocab_size))
    if live.size < rows:  # an error later would count the live rows alone
        softmax.check_hidden(query.hidden)
    lists, log_z = _lists(query, beams, constraints, live), np.zeros((rows, FIELDS))
    estimate = _log_z(query.rows(live), normalizer)
    log_z[live] = estimate.fields
    lengths = beams.lengths.astype(np.float64) + ~beams.finished
    divisors = ((5.0 + lengths) / 6.0) ** beams.length_alpha
    twins = np.where(beams.finished, -1, np.arange(rows))
    step = _Step(beams.scores.astype(np.float64), divisors, twins, lists, log_z)
    pairs = _pairs(beams, step)
    if normalizer.has_bounds and pairs.doubtful.any():
        closer = CLOSER[1:] if normalizer is EXACT else CLOSER
        pairs = _refined(query, beams, step, pairs.doubtful, closer)
    if constraints is None:
        found = estimate._replace(fields=log_z[live])
        log_z[live] = found.raised(lists.logits[live], lists.ids[live]).fields
    return _choice(beams, step, pairs, _reported(estimate, live, log_z))


def _refined(
    query: Query, beams: Beams, step: _Step, doubtful: Bool, closer: Sequence[FindLogZ]
) -> _Pairs:
    """The pairs after log Z of the rows of doubtful groups is found as closely as it takes."""
    for group in np.flatnonzero(doubtful).tolist():
        rows = slice(group * beams.beams_in, (group + 1) * beams.beams_in)
        equal = (query.hidden[rows, None] == query.hidden[rows]).all(axis=2)
        step.twins[rows] = np.where(beams.finished[rows], -1, rows.start + equal.argmax(axis=1))
    pairs = _pairs(beams, step)
    for find_log_z in closer:
        open_ = np.flatnonzero(np.repeat(pairs.doubtful, beams.beams_in) & ~beams.finished)
        if open_.size:
            step.log_z[open_] = find_log_z(query.rows(open_)).fields
            pairs = _pairs(beams, step)
    for group in np.flatnonzero(pairs.doubtful).tolist():
        _settle(query, beams, step, pairs, group)
    return pairs


def _settle(query: Query, beams: Beams, step: _Step, pairs: _Pairs, group: int) -> None:
    """Choose a group's pairs anew by rational numbers.

    Each log Z is within ERROR of its number. Scores of different hypotheses that this leaves open
    count as equal.
    """
    first, lists = group * beams.beams_in, step.lists
    rows = range(first, first + beams.beams_in)
    close = cast(ExactHead, EXACT.source(query.index)).close_log_z(query.hidden[rows])
    log_z = [sum(map(Fraction, fields)) for fields in close.tolist()]
    error = [Fraction(ERROR if query.index.vocab_size > 1 else 0)] * len(rows)
    for beam in np.flatnonzero(beams.finished[rows]).tolist():
        log_z[beam] = error[beam] = Fraction(0)
    divisors = [Fraction(divisor) for divisor in step.divisors[rows].tolist()]
    scores = [Fraction(score) for score in step.scores[rows].tolist()]
    fronts = [0] * len(rows)

    def rank(beam: int) -> Fraction:
        logit = Fraction(float(lists.logits[first + beam, fronts[beam]]))
        return (scores[beam] + logit - log_z[beam]) / divisors[beam]

    def off(beam: int, other: int) -> Fraction:
        """The difference from which on two ranks are unequal."""
        alike = step.twins[first + beam] == step.twins[first + other]
        if alike and divisors[beam] == divisors[other]:
            return Fraction(0)
        return error[beam] / divisors[beam] + error[other] / divisors[other]

    for pair in range(beams.beams_out):
        open_ = [beam for beam in range(len(rows)) if fronts[beam] < lists.counts[first + beam]]
        pairs.parents[group, pair], pairs.places[group, pair] = -1, 0
        if not open_:
            continue
        ranks = {beam: rank(beam) for beam in open_}
        best = max(open_, key=lambda beam: (ranks[beam], -beam))
        ties = [beam for beam in open_ if ranks[best] - ranks[beam] <= off(beam, best)]
        # Of rows that have the same log Z the order is never left open.
        chosen = next(
            beam
            for beam in ties
            if not any(ranks[other] > ranks[beam] and not off(beam, other) for other in ties)
        )
        pairs.parents[group, pair], pairs.places[group, pair] = chosen, fronts[chosen]
        fronts[chosen] += 1
    pairs.doubtful[group] = False


def _lists(query: Query, beams: Beams, constraints: Constraints | None, live: Int64) -> _Lists:
    """A finished hypothesis has one token, its end, with a logit and a log Z of 0."""
    rows, k = len(query.hidden), query.k
    ids, logits = np.full((rows, k), -1, np.int32), np.zeros((rows, k))
    counts, exact = np.ones(rows, np.int64), np.ones(rows, np.bool_)
    provenance = Provenance(exact, np.zeros(rows, np.int32), np.zeros(rows, np.bool_))
    if live.size < rows:
        ids[beams.finished, 0] = beams.eos_ids[0]
    if live.size:
        best, counts[live] = _best(query, constraints, live)
        width = best.ids.shape[1]
        ids[live, :width], logits[live, :width] = best.ids, best.logits
        for whole, part in zip(provenance, best.provenance, strict=True):
            whole[live] = part
    return _Lists(ids, logits, counts, provenance)


def _best(query: Query, constraints: Constraints | None, live: Int64) -> tuple[BestLogits, Int64]:
    """The k best ids of each live row, or as many as constraints leave, and how many."""
    softmax, hidden, k = query.index.softmax, query.hidden, query.k
    if constraints is None:
        return best_unedited(softmax, query.head, hidden[live], k), np.full(live.size, k)
    edits = edits_of(softmax, constraints, hidden, live)
    wanted = np.minimum(edits.remaining(softmax.vocab_size), k)
    return best_edited(softmax, query.head, hidden[live], wanted, edits), wanted


def _log_z(query: Query, normalizer: Normalizer) -> LogZ:
    """log Z of any number of rows; most orders need less of it than `exact` gives."""
    if not len(query.hidden):
        return LogZ(np.empty((0, FIELDS)), bounded=normalizer.has_bounds)
    return _quick_log_z(query) if normalizer is EXACT else normalizer.log_z(query)


def _quick_log_z(query: Query) -> LogZ:
    exact = cast(ExactHead, EXACT.source(query.index))
    return LogZ.interval(exact.quick_log_z(query.hidden), query.scale)


# Ways to find log Z, each closer than the one before.
FindLogZ = Callable[[Query], LogZ]
CLOSER: Sequence[FindLogZ] = (_quick_log_z, EXACT.log_z)


def _pairs(beams: Beams, step: _Step) -> _Pairs:
    groups = len(beams.scores) // beams.beams_in
    parents, places = (np.empty((groups, beams.beams_out), np.int32) for _ in range(2))
    pairs, lists = _Pairs(parents, places, np.empty(groups, np.bool_)), step.lists
    best_pairs(*step[:3], lists.logits, lists.counts, step.log_z, *pairs)
    return pairs


def _choice(beams: Beams, step: _Step, pairs: _Pairs, reported: PrintedLogZ) -> BeamChoice:
    parents, places, doubtful = pairs
    lists, log_z, missing = step.lists, step.log_z, parents < 0
    rows = np.arange(len(parents))[:, None] * beams.beams_in + np.maximum(parents, 0)
    tokens = np.where(missing, -1, lists.ids[rows, places]).astype(np.int32)
    apart, rest = lists.logits[rows, places] - log_z[rows, TOP], log_z[rows, VALUE]
    off = ROUNDED * (np.abs(step.scores[rows]) + np.abs(apart) + np.abs(rest))
    off[beams.finished[rows]] = 0.0
    scores = step.scores[rows] + (apart - rest) - off  # not above the true ones
    ranks = np.minimum.accumulate(scores / step.divisors[rows], axis=1)
    ended = np.isin(tokens, np.array(beams.eos_ids, np.int32))
    exact = lists.provenance.exact.reshape(-1, beams.beams_in).all(axis=1) & ~doubtful
    return BeamChoice(
        parents,
        tokens,
        _printed(scores, missing),
        _printed(ranks, missing),
        ~missing & (beams.finished[rows] | ended),
        lists.provenance._replace(exact=np.repeat(exact, beams.beams_in)),
        reported,
    )


def _printed(values: Float64, missing: Bool) -> Float32:
    """float32 values within its range, rounded down; -inf where a pair is missing."""
    within = np.clip(values, -LARGEST, LARGEST)
    return rounded_down(np.where(missing, -np.inf, within))


def _reported(estimate: LogZ, live: Int64, log_z: Float64) -> PrintedLogZ:
    """log Z by row, NaN for finished hypotheses, with bounds if `estimate` has them."""
    printed = estimate._replace(fields=log_z[live]).printed()

    def by_row(values: Float32 | None) -> Float32 | None:
        if values is None:
            return None
        every = np.full(len(log_z), np.nan, np.float32)
        every[live] = values
        return every

    return PrintedLogZ(*map(by_row, printed))
