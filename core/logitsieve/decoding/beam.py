"""One step of a beam search over several groups at once; nothing is kept between steps.

A pair's score is that of its hypothesis plus logit - log Z, in float64, of the float32 log Z that
the reply names: so pairs are in the order in which the full softmax has them, if log Z is exact.
Where log Z is proven to lie in an interval, most orders are decided by it; for groups in which one
is not, the exact log Z is computed.

Wu et al. 2016, Google's Neural Machine Translation System, equation 14: the length penalty.

Shape letters: B rows (hypotheses), D hidden size, V vocabulary, G groups, N tokens a hypothesis,
K pairs a group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.requests import Beams
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, Provenance
from logitsieve.decoding.constrained import BestLogits, best_edited, best_unedited
from logitsieve.decoding.logit_edits import LARGEST, check_ids, edits_of
from logitsieve.decoding.normalizers import EXACT, LogZ, Normalizer, Query
from logitsieve.kernels.topk.merge import HIGH, LOW, VALUE, best_pairs


class BeamChoice(NamedTuple):
    """The chosen continuations, and their source."""

    parents: Int32  # [G, K] -1 where a group has too few pairs
    tokens: Int32  # [G, K]
    scores: Float32  # [G, K]
    ranks: Float32  # [G, K]
    finished: Bool  # [G, K]
    provenance: Provenance  # scanned: 0 for finished hypotheses
    log_z: LogZ  # NaN for finished hypotheses


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
    lists = _lists(query, beams, constraints, live)
    estimate = _log_z(query.rows(live), normalizer)
    log_z = _bounds(estimate, live, rows, normalizer)
    lengths = beams.lengths.astype(np.float64) + ~beams.finished
    divisors = ((5.0 + lengths) / 6.0) ** beams.length_alpha
    pairs = _pairs(beams, divisors, lists, log_z)
    if normalizer.has_bounds and pairs.doubtful.any():
        open_ = np.flatnonzero(np.repeat(pairs.doubtful, beams.beams_in) & ~beams.finished)
        log_z[:, open_] = EXACT.log_z(query.rows(open_)).value
        pairs = _pairs(beams, divisors, lists, log_z)
    return _step(beams, divisors, lists, log_z, pairs, _reported(estimate, live, log_z))


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
    """log Z of any number of rows; normalizers need one at least."""
    if len(query.hidden):
        return normalizer.log_z(query)
    none = np.empty(0, np.float32)
    return LogZ(none, none, none) if normalizer.has_bounds else LogZ(none)


def _bounds(estimate: LogZ, live: Int64, rows: int, normalizer: Normalizer) -> Float64:
    """[3, B] log Z and its bounds: 0 for finished hypotheses, infinite where none are proven."""
    low, high = estimate.low, estimate.high
    if normalizer.is_exact:
        low = high = estimate.value
    log_z = np.zeros((3, rows))
    log_z[VALUE, live] = estimate.value
    log_z[LOW, live] = -np.inf if low is None else low
    log_z[HIGH, live] = np.inf if high is None else high
    return log_z


def _pairs(beams: Beams, divisors: Float64, lists: _Lists, log_z: Float64) -> _Pairs:
    groups, scores = len(beams.scores) // beams.beams_in, beams.scores.astype(np.float64)
    parents, places = (np.empty((groups, beams.beams_out), np.int32) for _ in range(2))
    pairs = _Pairs(parents, places, np.empty(groups, np.bool_))
    best_pairs(scores, divisors, lists.logits, lists.counts, log_z, *pairs)
    return pairs


def _step(
    beams: Beams,
    divisors: Float64,
    lists: _Lists,
    log_z: Float64,
    pairs: _Pairs,
    reported: LogZ,
) -> BeamChoice:
    parents, places, doubtful = pairs
    missing = parents < 0
    rows = np.arange(len(parents))[:, None] * beams.beams_in + np.maximum(parents, 0)
    tokens = np.where(missing, -1, lists.ids[rows, places]).astype(np.int32)
    scores = beams.scores.astype(np.float64)[rows] + (
        lists.logits[rows, places] - log_z[VALUE, rows]
    )
    ended = np.isin(tokens, np.array(beams.eos_ids, np.int32))
    exact = lists.provenance.exact.reshape(-1, beams.beams_in).all(axis=1) & ~doubtful
    return BeamChoice(
        parents,
        tokens,
        _printed(scores, missing),
        _printed(scores / divisors[rows], missing),
        ~missing & (beams.finished[rows] | ended),
        lists.provenance._replace(exact=np.repeat(exact, beams.beams_in)),
        reported,
    )


def _printed(values: Float64, missing: Bool) -> Float32:
    """float32 values within its range, -inf where a pair is missing."""
    return np.where(missing, -np.inf, np.clip(values, -LARGEST, LARGEST)).astype(np.float32)


def _reported(estimate: LogZ, live: Int64, log_z: Float64) -> LogZ:
    """log Z by row, NaN for finished hypotheses, with bounds if `estimate` has them."""
    by_row = np.full(log_z.shape, np.nan, np.float32)
    by_row[:, live] = log_z[:, live]
    value, low, high = by_row
    error = None
    if estimate.error is not None:
        error = np.full(len(value), np.nan, np.float32)
        error[live] = estimate.error
    return LogZ(value, low, high, error) if estimate.low is not None else LogZ(value, error=error)
