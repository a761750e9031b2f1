"""Sample from the softmax by the Gumbel-max trick, if possible without computing all logits.

If filters leave few ids, `sample` draws from a list of these. Otherwise `full` and `sketch` compute
the best ids and rule out others by a bound on their noise, or they compute all logits; other heads
sample lazily, without a proof.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log
from typing import Any, NamedTuple, cast

import numpy as np

from logitsieve.api.requests import Sampling
from logitsieve.api.results import Float32, Float64, Int32, Int64, Provenance
from logitsieve.decoding.logit_edits import BestLogits, token_logits
from logitsieve.decoding.normalizers import (
    APPROXIMATE,
    CANDIDATES,
    FULL,
    SAMPLED,
    SKETCH,
    LogZ,
    LogZ32,
    Normalizer,
    Query,
    found_by,
    narrowed,
)
from logitsieve.decoding.shortlists import (
    Shortlist,
    left_by_filters,
    listed_with_log_z,
    needed_best,
    no_floors,
    selected_best,
    shortlist,
    unknown_log_z,
)
from logitsieve.heads._base.edits import no_edits
from logitsieve.heads._base.head import refuse_first
from logitsieve.heads.full import FullHead
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.sampling.lists import OPEN, best_sample, fit_nucleus, list_sample
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.sampling.lsh_softmax import lazy_sample
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP

DRAWING = FULL.name, SKETCH.name  # heads that draw exactly from all ids, with any filter
TRUSTED = 10  # a head without proofs is trusted to find this many best ids
BEST, LEAST_MIN_P = 64, 0.01  # a min_p this large nearly always leaves at most BEST ids
FEW_BEST = 32  # replaces BEST where the head finds a shorter list faster
NUCLEUS_WIDTH = 0.01  # widest interval, in nats, for log Z of a nucleus with an unknown last id
MANY = 512  # this many best ids often contain the whole nucleus
IDS_A_BEST = 64  # a heap of V / 64 best ids still costs less than a product with W
PRODUCTS_A_DRAW = 1 << 16  # V D that takes as long as a draw by the best ids, with W in L3
FEW_SAMPLES = 4  # up to this many draws, their noise limits which of the best ids are needed
LEAST_PRODUCTS = 1 << 23  # V D below which computing all logits is as fast as anything else
SUMMED = 2.0**-48  # relative slack of an interval's ends, for four roundings and two functions
# If more draws than this are expected outside the nucleus, drawing twice takes longer than drawing
# from all logits; the limit is higher once the best ids are known.
MOST_OPEN, MOST_OPEN_KNOWN = 0.3, 1.0


Draw = Callable[[Query, Sampling], "Draws"]


class Draws(NamedTuple):
    ids: Int32  # [B, N]
    log_probs: Float32  # [B, N] under the distribution after temperature and filters; or NaN
    provenance: Provenance  # proven: the draws follow the full softmax, after filters
    normalizer: str
    log_z: LogZ32  # of the distribution that `log_probs` belong to
    perturbed: Float32 | None = None  # [B, N] of draws without replacement


class _Drawn(NamedTuple):
    ids: Int32  # [B, N]
    proven: bool
    scanned: Int32  # [B]
    normalizer: Normalizer
    log_z: LogZ | None = None


def sample(query: Query, how: Sampling, normalizer: Normalizer | None) -> Draws:
    """Draw for each row of the query; its edits must leave at least one id.

    Log-probabilities use `normalizer`, or if it is None the log Z that drawing finds anyway. With
    filters or an allow list they are normalized over the remaining ids.
    """
    allow_list = query.edits is not None and query.edits.allow_list
    if allow_list or how.top_k > 0 or how.temperature == 0.0:
        return _from_lists(query, how, shortlist(query, how), allow_list)
    if how.temperature != 1.0:
        query = query._replace(scale=how.scale)
    if query.head.quick_best:
        scored, few = how.log_probs or normalizer is not None, _suits_best(query, how, MOST_OPEN)
        if how.min_p >= LEAST_MIN_P and how.top_p == 1.0:
            draws = _from_best(query, how)
            return draws if scored else unscored(draws.ids, draws.provenance)
        if few and not scored:
            return _by_best(query, how)
        if few and how.min_p == 0.0 and _estimates(query, normalizer):
            return _by_estimate(query, how)
        if scored and how.top_p < 1.0:
            query = query._replace(width=min(query.width, NUCLEUS_WIDTH))
        if how.min_p >= LEAST_MIN_P:
            return _from_best(query, how)
        if how.top_p < 1.0:
            return _from_nucleus(query, how)
    return _from_all(query, how, normalizer)


def _is_small(query: Query) -> bool:
    return query.index.vocab_size * query.index.dim < LEAST_PRODUCTS


def _suits_best(query: Query, how: Sampling, most_open: float) -> bool:
    few = how.samples * PRODUCTS_A_DRAW < query.index.vocab_size * query.index.dim
    return few and how.samples * (1.0 - how.top_p) <= most_open


def _estimates(query: Query, normalizer: Normalizer | None) -> bool:
    if not query.plain or normalizer not in (None, APPROXIMATE):
        return False
    k = min(BEST, query.index.vocab_size)
    rows = len(query.hidden_states)
    return query.head.estimates_at(query.scale, k) and query.head.selects(k, rows)


def _from_best(query: Query, how: Sampling) -> Draws:
    """Draw from the BEST ids if filters leave no other."""
    best, _ = needed_best(query, how._replace(samples=0), BEST)
    unknown = LogZ(unknown_log_z(len(best.ids)), query.scale)
    lists, lengths = left_by_filters(best, unknown, how)
    draws = _from_lists(query, how, lists, query.head.max_error == 0.0)
    return redrawn(query, how, draws, np.flatnonzero(lengths < 0), _from_nucleus)


def _from_nucleus(query: Query, how: Sampling) -> Draws:
    """Draw from the MANY best ids if log Z proves that they contain the nucleus, else `_within`."""
    if _is_small(query):
        return _from_all(query, how)
    best, log_z = listed_with_log_z(query, MANY)
    lists, lengths = left_by_filters(best, log_z, how)
    draws, rest = _from_lists(query, how, lists, True), np.flatnonzero(lengths < 0)
    return _far_redrawn(query, how, draws, best, log_z, -1 - lengths, rest, _from_all)


def _within(
    query: Query, how: Sampling, best: BestLogits, log_z: LogZ, sure: Int64, again: Draw
) -> Draws:
    """Draw from all ids, and accept draws that are surely in the nucleus; others use `again`.

    The first `sure` best ids of each row are known to be in the nucleus.
    """
    if how.min_p > 0.0 or not _suits_best(query, how, MOST_OPEN_KNOWN):
        return again(query, how)
    ids, provenance = _beyond(query, how, best, no_floors(len(best.ids)), log_z.fields)
    last = best.logits[np.arange(len(sure)), np.maximum(sure - 1, 0)]
    nucleus = _nucleus(log_z, how.top_p, last)
    logits = token_logits(query.index.softmax, query.hidden_states, np.maximum(ids, 0), query.edits)
    log_probs, _ = nucleus.log_probs(logits, ids)
    draws = Draws(ids, log_probs, provenance, CANDIDATES.name, nucleus.rounded())
    open_ = (ids == OPEN).any(axis=1) | (nucleus.spans > query.width)
    return redrawn(query, how, draws, np.flatnonzero(open_), again)


def _nucleus(log_z: LogZ, top_p: float, heaviest: Float64) -> LogZ:
    """Bound log Z of the nucleus by log Z of all ids.

    The nucleus has at least the share top_p of Z, and less than that without its last id. The logit
    of the last id is at most `heaviest`, [B].
    """
    scale, share = log_z.scale, log(top_p)
    low, high = (scale * log_z.fields[:, TOP] + log_z.fields[:, end] for end in (LOW, HIGH))
    spare = SUMMED * (1.0 - share + np.abs(low) + np.abs(high) + scale * np.abs(heaviest))
    low, high = share + low, np.logaddexp(share + high, scale * heaviest)
    fields = np.stack([np.zeros(len(low)), (low + high) / 2, low - spare, high + spare], axis=1)
    return LogZ(fields, scale)


def _by_best(query: Query, how: Sampling) -> Draws:
    """Draw by the best ids and a bound on the noise of all others, without log-probabilities."""
    k, rows = min(BEST, query.index.vocab_size), len(query.hidden_states)
    noisy = how.samples <= FEW_SAMPLES and query.head.selects(k, rows)
    listing = how if noisy else how._replace(samples=0)
    few = noisy and how.top_p == 1.0  # the nucleus needs more of the best ids
    best, floors = needed_best(query, listing, FEW_BEST if few else BEST)
    ids, provenance = _beyond(query, how, best, floors, unknown_log_z(rows))
    draws = unscored(ids, provenance)
    if not how.filtered:
        return draws
    again = _by_interval if query.plain else _from_nucleus
    draws = redrawn(query, how, draws, np.flatnonzero((ids == OPEN).any(axis=1)), again)
    return unscored(draws.ids, draws.provenance)


def _by_interval(query: Query, how: Sampling, most: int = MANY) -> Draws:
    """Draw from all ids that may be in the nucleus, and draw again if the winner may be outside.

    A rough log Z suffices: a winner that is surely in the nucleus also wins there.
    """
    if _is_small(query):
        return _from_all(query, how)
    full, k = cast(FullHead, FULL.source(query)), min(most, query.index.vocab_size)
    rough = full.rough_log_z(query.hidden_states, k, query.scale)
    best, log_z = found_by(full, rough, query.scale, False)
    highest = log_z.fields.copy()
    highest[:, LOW] = highest[:, HIGH]
    _, lengths = left_by_filters(best, log_z, how)
    lists, longest = left_by_filters(best, log_z._replace(fields=highest), how)
    sure, draws = np.maximum(lengths, -1 - lengths), _from_lists(query, how, lists, True)
    places = (best.ids[:, None] == draws.ids[:, :, None]).argmax(axis=2)
    open_ = (places >= sure[:, None]).any(axis=1) & (longest >= 0)
    draws = redrawn(query, how, draws, np.flatnonzero(open_), _from_nucleus)
    far, more = np.flatnonzero(longest < 0), query.index.vocab_size // IDS_A_BEST
    again = partial(_by_interval, most=more) if most < more else _from_all
    return _far_redrawn(query, how, draws, best, log_z, sure, far, again)


def _far_redrawn(
    query: Query, how: Sampling, draws: Draws, best: BestLogits, log_z: LogZ, sure: Int64,
    far: Int64, again: Draw,
) -> Draws:  # fmt: skip
    """Draw again for the rows `far`: their nuclei may extend beyond their best ids."""
    log_z = log_z._replace(fields=log_z.fields[far])
    within = partial(_within, best=best.rows(far), log_z=log_z, sure=sure[far], again=again)
    return redrawn(query, how, draws, far, within)


def _by_estimate(query: Query, how: Sampling) -> Draws:
    """Draw like `_by_best`, with log-probabilities by the head's own estimate of log Z."""
    # With no samples, `needed` finds the largest logits, which the estimate needs.
    k = min(BEST, query.index.vocab_size)
    best, floors, log_z = selected_best(query, how._replace(samples=0), k, summed=True)
    ids, provenance = _beyond(query, how, best, floors, log_z.fields)
    if how.top_p < 1.0:
        fit_nucleus(best.logits, floors, query.scale, how.top_p, log_z.fields, log_z.error)
    logits = token_logits(query.index.softmax, query.hidden_states, np.maximum(ids, 0), query.edits)
    log_probs, _ = log_z.raised(logits, ids).log_probs(logits, ids)
    draws = Draws(ids, log_probs, provenance, APPROXIMATE.name, log_z.rounded())
    open_ = np.flatnonzero((ids == OPEN).any(axis=1))
    assert draws.log_z.error is not None, "of an estimate"
    draws.log_z.error[open_] = 0.0
    return redrawn(query, how, draws, open_, _from_nucleus)


def _beyond(
    query: Query, how: Sampling, best: BestLogits, floors: Float64, log_z: Float64
) -> tuple[Int32, Provenance]:
    """Draw from all ids, given the best of them and LogZ's fields; OPEN if a filter may remove it.

    Ids below `floors` [B] may be missing from the best.
    """
    index, rows, descriptor = query.index, len(best.ids), query.descriptor
    edits = (query.edits or no_edits(rows)).arrays
    ids, scanned = np.empty((rows, how.samples), np.int32), np.empty(rows, np.int32)
    draw = partial(
        best_sample.entry(), descriptor.ctypes.data, query.hidden_states, best.ids, best.logits,
        floors, how.seeds, how.step, query.scale, *how.filters, index.first_id, *edits,
        log_z, ids, scanned,
    )  # fmt: skip
    refuse_first(run_slices(draw, rows, index.threads))
    scanned = np.minimum(scanned + best.provenance.scanned, index.vocab_size)
    return ids, best.provenance._replace(scanned=scanned)


def redrawn(query: Query, how: Sampling, draws: Draws, rest: Int64, draw: Draw) -> Draws:
    """Overwrite the draws of the rows `rest` by `draw`."""
    if rest.size:
        others = draw(query.rows(rest), how._replace(seeds=how.seeds[rest], log_probs=True))
        scanned = others.provenance.scanned + draws.provenance.scanned[rest]
        np.minimum(scanned, query.index.vocab_size, out=others.provenance.scanned)
        fields: list[tuple[Any, Any]] = [
            (draws[:2], others[:2]),
            (draws.provenance[:3], others.provenance[:3]),
            (draws.log_z[:3], others.log_z[:3]),
            (draws[-1:], others[-1:]),
        ]
        for each, other in fields:
            for values, replaced in zip(each, other, strict=True):
                if values is not None:
                    values[rest] = replaced
    return draws


def unscored(ids: Int32, provenance: Provenance) -> Draws:
    log_probs = np.full(ids.shape, np.nan, np.float32)
    return Draws(ids, log_probs, provenance, "", LogZ32(None))


def _from_lists(query: Query, how: Sampling, lists: Shortlist, bounded: bool) -> Draws:
    places = np.empty((len(query.hidden_states), how.samples), np.int32)
    noise = how.seeds, how.step, how.scale, query.index.first_id
    list_sample(lists.offsets, lists.ids, lists.logits, *noise, places)
    return listed_draws(how, lists, places, bounded)


def listed_draws(
    how: Sampling, lists: Shortlist, places: Int32, bounded: bool, perturbed: Float32 | None = None
) -> Draws:
    """Return the ids at `places` [B, N] of the lists, -1 for none.

    Set `bounded` if each list provably has every id with p > 0.
    """
    fields, chosen = np.empty((len(places), FIELDS)), lists.offsets[:-1, None] + places
    csr_log_z(lists.offsets, lists.logits, how.scale, fields)
    ids, logits = lists.ids[chosen], lists.logits[chosen]
    if perturbed is not None:
        ids[places < 0], logits[places < 0] = -1, -np.inf
    log_z = LogZ(fields, how.scale, bounded)
    log_probs, _ = log_z.log_probs(logits, ids)
    source = lists.provenance, CANDIDATES.name, log_z.rounded()
    return Draws(ids, log_probs, *source, perturbed)


def _from_all(query: Query, how: Sampling, normalizer: Normalizer | None = None) -> Draws:
    lazily = query.head.name not in DRAWING
    fallback = lazily and (how.filtered or query.mask is not None)
    if fallback:
        query, lazily = to_drawing_head(query), False
    drawn = (_draw_lazily if lazily else _draw_by_noise)(query, how)
    proven, handed = np.empty((2, len(query.hidden_states)), np.bool_)
    proven.fill(drawn.proven)
    handed.fill(fallback)
    provenance = Provenance(proven, drawn.scanned, handed)
    if not how.log_probs and normalizer is None:
        return unscored(drawn.ids, provenance)
    normalizer, log_z = normalizer or drawn.normalizer, drawn.log_z
    if how.filtered:
        normalizer = CANDIDATES  # log Z is of the filtered ids
    elif log_z is None or normalizer is not drawn.normalizer:
        log_z = normalizer.log_z(query)
    assert log_z is not None, "every head that applies filters finds log Z"
    logits = token_logits(query.index.softmax, query.hidden_states, drawn.ids, query.edits)
    log_probs, _ = log_z.log_probs(logits, drawn.ids)
    return Draws(drawn.ids, log_probs, provenance, normalizer.name, log_z.rounded())


def to_drawing_head(query: Query) -> Query:
    """Return the query to the index's fastest head of DRAWING."""
    name = next(name for name in (SKETCH.name, FULL.name) if name in query.index.heads)
    return query.by(query.index.head(name))


def _draw_by_noise(query: Query, how: Sampling) -> _Drawn:
    """Draw by the best ids if these probably suffice, else by all logits."""
    own = FULL if query.head.name == FULL.name else SKETCH
    few = query.head.quick_best and not how.filtered and _suits_best(query, how, MOST_OPEN)
    if own is SKETCH and few:
        best, log_z = listed_with_log_z(query, BEST)
        ids, provenance = _beyond(query, how, best, no_floors(len(best.ids)), log_z.fields)
        return _Drawn(ids, True, provenance.scanned, own, narrowed(log_z, query))
    head = cast(FullHead, query.head)
    drawn = head.draw(query.hidden_states, how, query.scale, query.edits, query.index.first_id)
    ids, fields, scanned = drawn
    return _Drawn(ids, True, scanned, own, LogZ(fields, query.scale))


def _draw_lazily(query: Query, how: Sampling) -> _Drawn:
    """Draw by lazy Gumbel noise, assuming that no skipped id beats the TRUSTED best ones."""
    hidden_states, index = query.hidden_states, query.index
    rows, k = len(hidden_states), min(TRUSTED, index.vocab_size)
    floors = query.head.topk(hidden_states, k).logits[:, -1].astype(np.float64)
    listed, address = query._replace(k=k).listed(), index.softmax.address
    ids, computed = np.empty((rows, how.samples), np.int32), np.empty(rows, np.int32)
    noise = how.seeds, how.step, query.scale
    refuse_first([lazy_sample(address, hidden_states, *noise, *listed, floors, ids, computed)])
    scanned = (np.diff(listed.offsets) + computed).astype(np.int32)
    return _Drawn(ids, False, scanned, SAMPLED)
