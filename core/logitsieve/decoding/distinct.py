"""Draw without replacement: the N ids with the largest x_i / T + G_i, in that order (Gumbel top-k).

Kool, van Hoof, Welling 2019, Stochastic Beams and Where to Find Them. The noise equals that of the
first draw with replacement, so both begin with the same id.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Sampling
from logitsieve.decoding.logit_edits import token_logits
from logitsieve.decoding.normalizers import FULL, SKETCH, Normalizer, Query
from logitsieve.decoding.sampler import (
    DRAWING,
    MANY,
    Draws,
    listed_draws,
    redrawn,
    to_drawing_head,
    unscored,
)
from logitsieve.decoding.shortlists import (
    Shortlist,
    left_by_filters,
    listed_with_log_z,
    needed_best,
    shortlist,
)
from logitsieve.heads._base.edits import no_edits
from logitsieve.heads._base.head import refuse_first
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.sampling import distinct
from logitsieve.kernels.sampling.gumbel import gumbel_noise

LEAST_LISTED = 64  # best ids to find, at least; and at least twice as many as are drawn
MOST_BY_BEST = 128  # for more draws a row, all logits are sorted


def distinct_sample(query: Query, how: Sampling, normalizer: Normalizer | None) -> Draws:
    """Draw for each row of the query; InvalidRequest for more samples than V.

    Rows with fewer ids end in -1. A head that is not of DRAWING hands its draws to one that is, and
    the default `normalizer` is the proven one of the head that draws.
    """
    refuse_more(how.samples, query.index.vocab_size)
    handed = query.head.name not in DRAWING
    if handed:
        query = to_drawing_head(query)
    query = query._replace(scale=how.scale)
    allow_list = query.edits is not None and query.edits.allow_list
    if allow_list or how.top_k > 0:
        draws = _from_lists(query, how, shortlist(query, how), allow_list)
    elif how.filtered:
        draws = _from_filtered(query, how)
    elif how.samples > MOST_BY_BEST:
        draws = _from_sorted(query, how)
    else:
        draws = _from_best(query, how, normalizer)
    draws.provenance.fallback[:] |= handed
    return draws


def refuse_more(samples: int, vocab_size: int) -> None:
    if samples > vocab_size:
        allowed = f"at most {vocab_size}, the ids of the vocabulary, without replacement"
        raise InvalidRequest("samples", samples, allowed)


def _from_best(query: Query, how: Sampling, normalizer: Normalizer | None) -> Draws:
    """Draw from all ids by the best ones and a bound on the noise of the others."""
    index, rows, count = query.index, len(query.hidden_states), how.samples
    descriptor = query.descriptor
    best = needed_best(query, how._replace(samples=0), max(LEAST_LISTED, 2 * count))[0]
    ids, noisy = np.empty((rows, count), np.int32), np.empty((rows, count))
    scanned, edits = np.empty(rows, np.int32), (query.edits or no_edits(rows)).arrays
    draw = partial(
        distinct.distinct_sample.entry(), descriptor.ctypes.data, query.hidden_states, best.ids,
        best.logits, how.seeds, how.step, query.scale, index.first_id, *edits, ids, noisy, scanned,
    )  # fmt: skip
    refuse_first(run_slices(draw, rows, index.threads))
    scanned = np.minimum(scanned + best.provenance.scanned, index.vocab_size)
    provenance = best.provenance._replace(scanned=scanned)
    perturbed = noisy.astype(np.float32)
    if not how.log_probs and normalizer is None:
        return unscored(ids, provenance)._replace(perturbed=perturbed)
    normalizer = normalizer or (SKETCH if query.head.name == SKETCH.name else FULL)
    log_z, named = normalizer.log_z(query), np.maximum(ids, 0)
    logits = token_logits(index.softmax, query.hidden_states, named, query.edits)
    log_probs, _ = log_z.log_probs(np.where(ids < 0, -np.inf, logits), ids)
    return Draws(ids, log_probs, provenance, normalizer.name, log_z.rounded(), perturbed)


def _from_filtered(query: Query, how: Sampling) -> Draws:
    """Draw from the best ids if log Z proves that they include all that top-p and min-p leave."""
    best, log_z = listed_with_log_z(query, MANY)
    lists, lengths = left_by_filters(best, log_z, how)
    draws, rest = _from_lists(query, how, lists, True), np.flatnonzero(lengths < 0)
    return redrawn(query, how, draws, rest, _from_sorted)


def _from_sorted(query: Query, how: Sampling) -> Draws:
    query = query._replace(head=FULL.source(query))
    return _from_lists(query, how, shortlist(query, how), True)


def _from_lists(query: Query, how: Sampling, lists: Shortlist, bounded: bool) -> Draws:
    lengths = np.diff(lists.offsets)
    held = np.arange(lengths.max()) < lengths[:, None]  # [B, L] the lists as padded rows
    ids, logits = np.full(held.shape, -1, np.int32), np.zeros(held.shape)
    ids[held], logits[held] = lists.ids, lists.logits
    named = np.where(held, ids + np.int32(query.index.first_id), np.int32(-1))
    noise = np.empty(held.shape)  # -inf beyond a list
    for row, seed in enumerate(how.seeds):
        gumbel_noise(seed, how.step, named[row : row + 1], noise[row : row + 1])
    largest = logits[:, :1]
    values = (logits - largest) * query.scale + noise  # rounded as kernels do
    best = np.lexsort((ids, -values))[:, : how.samples]
    found = np.take_along_axis(values, best, axis=1)
    places = np.full((len(ids), how.samples), -1, np.int32)
    perturbed = np.full(places.shape, -np.inf, np.float32)
    places[:, : best.shape[1]] = np.where(found > -np.inf, best, -1)
    perturbed[:, : best.shape[1]] = found + largest * query.scale
    return listed_draws(how, lists, places, bounded, perturbed)
