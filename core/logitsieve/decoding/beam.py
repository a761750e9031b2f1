"""One stateless step of a beam search over several groups of hypotheses.

Wu et al. 2016, Google's Neural Machine Translation System, equation 14: the length penalty.

If the proven interval of log Z does not settle a group's best pairs and their order, log Z is
computed again, to some 1e-12. A group that is still unsettled is not proven.

Shape letters: N tokens a hypothesis, K pairs (a hypothesis and its next token) a group.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.requests import Beams
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, Provenance
from logitsieve.decoding.logit_edits import (
    BestLogits,
    best_edited,
    best_unedited,
    check_ids,
    edits_of,
)
from logitsieve.decoding.normalizers import (
    APPROXIMATE,
    FULL,
    LogZ,
    LogZ32,
    Normalizer,
    Query,
    best_with_log_z,
    estimating,
    quick_log_z,
)
from logitsieve.kernels.sampling.rounding import round_pairs
from logitsieve.kernels.topk.merge import FIELDS, best_pairs

EVERY = slice(None)
FindLogZ = Callable[[Query], LogZ]
CLOSER: Sequence[FindLogZ] = (quick_log_z, FULL.log_z)  # each has narrower intervals than the last


class BeamChoice(NamedTuple):
    parents: Int32  # [G, K], -1 if a group has too few pairs
    tokens: Int32  # [G, K]
    scores: Float32  # [G, K]
    normalized_scores: Float32  # [G, K]
    finished: Bool  # [G, K]
    provenance: Provenance  # scanned is 0 for finished hypotheses
    log_z: LogZ32  # NaN for finished hypotheses


class _Lists(NamedTuple):
    ids: Int32  # [B, N]
    logits: Float64  # [B, N]
    counts: Int64  # [B]
    provenance: Provenance


class _Pairs(NamedTuple):
    parents: Int32  # [G, K]
    places: Int32  # [G, K] within the parent's list
    doubtful: Bool  # [G] True if the bounds of log Z do not settle the order


class _Step(NamedTuple):
    scores: Float64  # [B]
    divisors: Float64  # [B] length penalties, which divide scores to rank them
    alike: Int64  # [B] equal numbers mark rows with the same log Z; -1 if finished
    lists: _Lists
    log_z: Float64  # [B, 4] TOP, VALUE, LOW, HIGH


def beam_step(
    query: Query, beams: Beams, constraints: Constraints | None, normalizer: Normalizer
) -> BeamChoice:
    softmax, rows = query.index.softmax, len(query.hidden_states)
    check_ids(np.array(beams.eos_ids, np.int32), softmax.vocab_size, "eos_ids")
    live = np.flatnonzero(~beams.finished)
    query = query._replace(k=min(beams.beams_out, softmax.vocab_size))
    if live.size < rows:  # later checks see live rows only, and would misnumber a bad one
        softmax.check_hidden(query.hidden_states)
    lists, estimate = _lists(query, beams, constraints, live, normalizer)
    step, of_live = _step(beams, live, lists, estimate)
    pairs = _pairs(beams, step)
    if normalizer.has_bounds and pairs.doubtful.any():
        pairs = _refined(query, beams, step, pairs, CLOSER[normalizer is FULL :])
    if constraints is None:
        last = estimate._replace(fields=step.log_z[of_live])
        step.log_z[of_live] = last.raised(lists.logits[of_live], lists.ids[of_live]).fields
    return _choice(beams, step, pairs, _reported(estimate, of_live, step.log_z))


def choose_pairs(
    beams: Beams, live: Int64, k: int, best: BestLogits, counts: Int64, log_z: LogZ
) -> BeamChoice:
    """Return the best continuations, given lists of counts [L] tokens and log Z of `live` rows."""
    ids, logits = np.ascontiguousarray(best.ids), np.ascontiguousarray(best.logits)
    best = best._replace(ids=ids, logits=logits)  # kernels need contiguous arrays
    lists = _with_finished(beams, live, k, best, counts)
    step, of_live = _step(beams, live, lists, log_z)
    return _choice(beams, step, _pairs(beams, step), _reported(log_z, of_live, step.log_z))


def _step(beams: Beams, live: Int64, lists: _Lists, estimate: LogZ) -> tuple[_Step, Int64 | slice]:
    rows = len(beams.scores)
    log_z, of_live = np.zeros((rows, FIELDS)), live if live.size < rows else EVERY
    log_z[of_live] = estimate.fields
    divisors, alike = np.ones(rows), np.arange(rows)
    if beams.length_penalty:
        lengths = beams.lengths.astype(np.float64) + ~beams.finished
        divisors = ((5.0 + lengths) / 6.0) ** beams.length_penalty
    if live.size < rows:
        alike[beams.finished] = -1
    return _Step(beams.scores.astype(np.float64), divisors, alike, lists, log_z), of_live


def _refined(
    query: Query, beams: Beams, step: _Step, pairs: _Pairs, closer: Sequence[FindLogZ]
) -> _Pairs:
    """Choose again in doubtful groups by narrower intervals; rows with equal states share one."""
    for group in np.flatnonzero(pairs.doubtful).tolist():
        rows = slice(group * beams.beams_in, (group + 1) * beams.beams_in)
        equal = (query.hidden_states[rows, None] == query.hidden_states[rows]).all(axis=2)
        step.alike[rows] = np.where(beams.finished[rows], -1, rows.start + equal.argmax(axis=1))
    for find_log_z in closer:
        open_ = np.flatnonzero(np.repeat(pairs.doubtful, beams.beams_in) & ~beams.finished)
        if open_.size:
            step.log_z[open_] = find_log_z(query.rows(open_)).fields
            pairs = _pairs(beams, step)
    return pairs


def _lists(
    query: Query, beams: Beams, constraints: Constraints | None, live: Int64, normalizer: Normalizer
) -> tuple[_Lists, LogZ]:
    """Return the tokens of each hypothesis, and log Z of the live ones.

    A finished hypothesis continues with the end token alone, whose logit and log Z are 0.
    """
    if not live.size:
        none, counts = np.empty(0, np.bool_), np.empty(0, np.int64)
        provenance = Provenance(none, np.empty(0, np.int32), none)
        best = BestLogits(np.empty((0, 1), np.int32), np.empty((0, 1)), provenance)
        log_z = LogZ(np.empty((0, FIELDS)), bounded=normalizer.has_bounds)
    else:
        best, counts, log_z = _best(query, constraints, live, normalizer)
    return _with_finished(beams, live, query.k, best, counts), log_z


def _with_finished(beams: Beams, live: Int64, k: int, best: BestLogits, counts: Int64) -> _Lists:
    rows = len(beams.scores)
    if live.size == rows:
        return _Lists(best.ids, best.logits, counts, best.provenance)
    ids, logits, width = np.full((rows, k), -1, np.int32), np.zeros((rows, k)), best.ids.shape[1]
    ids[live, :width], logits[live, :width] = best.ids, best.logits
    ids[beams.finished, 0] = beams.eos_ids[0]
    columns = zip(best.provenance[:3], (True, 0, False), strict=True)
    every = (_spread(each, live, rows, value) for each, value in columns)
    provenance = Provenance(*every)._replace(max_error=best.provenance.max_error)
    return _Lists(ids, logits, _spread(counts, live, rows, 1), provenance)


def _spread(values: Any, live: Int64 | slice, rows: int, finished: float) -> Any:
    every = np.full(rows, finished, values.dtype)
    every[live] = values
    return every


def _best(
    query: Query, constraints: Constraints | None, live: Int64, normalizer: Normalizer
) -> tuple[BestLogits, Int64, LogZ]:
    softmax, k = query.index.softmax, query.k
    alone = query if live.size == len(query.hidden_states) else query.rows(live)
    if constraints is not None:
        edits = edits_of(softmax, constraints, query.hidden_states, live)
        wanted = np.minimum(edits.remaining(softmax.vocab_size), k)
        best = best_edited(softmax, query.head, alone.hidden_states, wanted, edits)
    else:
        wanted = np.full(live.size, k)
        if normalizer is APPROXIMATE or (normalizer is FULL and query.head.proves):
            approximate = normalizer is APPROXIMATE
            source = estimating(query) if approximate else FULL.source(query)
            best, log_z = best_with_log_z(alone, source)
            return best, wanted, log_z
        best = best_unedited(softmax, query.head, alone.hidden_states, k)
    return best, wanted, quick_log_z(alone) if normalizer is FULL else normalizer.log_z(alone)


def _pairs(beams: Beams, step: _Step) -> _Pairs:
    groups = len(beams.scores) // beams.beams_in
    parents, places = (np.empty((groups, beams.beams_out), np.int32) for _ in range(2))
    pairs, lists = _Pairs(parents, places, np.empty(groups, np.bool_)), step.lists
    best_pairs(*step[:3], lists.logits, lists.counts, step.log_z, *pairs)
    return pairs


def _choice(beams: Beams, step: _Step, pairs: _Pairs, reported: LogZ32) -> BeamChoice:
    shape, lists = pairs.parents.shape, step.lists
    tokens, finished = np.empty(shape, np.int32), np.empty(shape, np.bool_)
    scores, ranks = np.empty(shape, np.float32), np.empty(shape, np.float32)
    round_pairs(
        *pairs[:2], lists.ids, lists.logits, step.log_z, step.scores, step.divisors,
        beams.finished, np.array(beams.eos_ids, np.int32), tokens, scores, ranks, finished,
    )  # fmt: skip
    proven = lists.provenance.proven.reshape(-1, beams.beams_in).all(axis=1) & ~pairs.doubtful
    max_error = min(1.0, beams.beams_in * lists.provenance.max_error)
    provenance = lists.provenance._replace(
        proven=np.repeat(proven, beams.beams_in),
        max_error=1.0 if pairs.doubtful.any() else max_error,
    )
    return BeamChoice(pairs.parents, tokens, scores, ranks, finished, provenance, reported)


def _reported(estimate: LogZ, live: Int64 | slice, log_z: Float64) -> LogZ32:
    rounded = estimate._replace(fields=log_z[live]).rounded()
    if live is EVERY:
        return rounded
    every = (v if v is None else _spread(v, live, len(log_z), np.nan) for v in rounded)
    return LogZ32(*every)
