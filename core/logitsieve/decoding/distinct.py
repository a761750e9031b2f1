"""Draw without replacement: the N ids with the largest x_i / T + G_i, in that order.

Kool, van Hoof, Welling 2019, Stochastic Beams and Where to Find Them (Gumbel top-k). The noise is
that of the first draw with replacement, so both begin with the same id. `full` and `sketch` draw;
another head hands such draws to one of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Sampling
from logitsieve.decoding.logit_edits import token_logits
from logitsieve.decoding.normalizers import (
    CANDIDATES,
    FULL,
    SKETCH,
    LogZ,
    LogZ32,
    Normalizer,
    Query,
)
from logitsieve.decoding.sampler import (
    DRAWS,
    MANY,
    Draws,
    Shortlist,
    found_best,
    left_by_filters,
    listed_with_log_z,
    redrawn,
    shortlist,
)
from logitsieve.heads._base.edits import no_edits
from logitsieve.heads._base.head import refuse_first
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.sampling import distinct
from logitsieve.kernels.sampling.gumbel import gumbel_noise
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.topk.merge import FIELDS

LEAST_LISTED = 64  # best ids; and twice as many as are drawn
MOST_BY_BEST = 128  # draws of a row; of more, all logits are sorted


def distinct_sample(query: Query, how: Sampling, normalizer: Normalizer | None) -> Draws:
    """Draw for each row of the query; InvalidRequest names `samples` beyond V.

    Rows with fewer ids end in -1. `normalizer` None uses the proven log Z of the drawing head.
    """
    refuse_more(how.samples, query.index.vocab_size)
    handed = query.head.name not in DRAWS
    if handed:
        name = next(name for name in (SKETCH.name, FULL.name) if name in query.index.heads)
        query = query._replace(head=query.index.head(name))
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
    """InvalidRequest names `samples` if there are not as many ids."""
    if samples > vocab_size:
        allowed = f"at most {vocab_size}, the ids of the vocabulary, without replacement"
        raise InvalidRequest("samples", samples, allowed)


def _from_best(query: Query, how: Sampling, normalizer: Normalizer | None) -> Draws:
    """Draw from all ids by the best ones and the noise of others."""
    index, rows, count = query.index, len(query.hidden_states), how.samples
    best, _, _ = found_best(query, how._replace(samples=0), max(LEAST_LISTED, 2 * count))
    ids, noisy = np.empty((rows, count), np.int32), np.empty((rows, count))
    scanned, edits = np.empty(rows, np.int32), (query.edits or no_edits(rows)).arrays
    draw = partial(
        distinct.distinct_sample.entry(), index.softmax.address, query.hidden_states, best.ids,
        best.logits, how.seeds, how.step, query.scale, index.first_id, *edits, ids, noisy, scanned,
    )  # fmt: skip
    refuse_first(run_slices(draw, rows, index.threads))
    scanned = np.minimum(scanned + best.provenance.scanned, index.vocab_size)
    provenance = best.provenance._replace(scanned=scanned)
    perturbed = noisy.astype(np.float32)
    if not how.log_probs and normalizer is None:
        log_probs = np.full(ids.shape, np.nan, np.float32)
        return Draws(ids, log_probs, provenance, "", LogZ32(None), perturbed)
    normalizer = normalizer or (SKETCH if query.head.name == SKETCH.name else FULL)
    log_z, named = normalizer.log_z(query), np.maximum(ids, 0)
    logits = token_logits(index.softmax, query.hidden_states, named, query.edits)
    log_probs, _ = log_z.log_probs(np.where(ids < 0, -np.inf, logits), ids)
    return Draws(ids, log_probs, provenance, normalizer.name, log_z.rounded(), perturbed)


def _from_filtered(query: Query, how: Sampling) -> Draws:
    """Draw from the best ids if log Z shows that they hold all that top-p and min-p leave."""
    best, wanted, log_z = listed_with_log_z(query, MANY)
    lists, lengths = left_by_filters(best, wanted, log_z, how)
    draws, rest = _from_lists(query, how, lists, True), np.flatnonzero(lengths < 0)
    return redrawn(query, how, draws, rest, _from_sorted)


def _from_sorted(query: Query, how: Sampling) -> Draws:
    query = query._replace(head=FULL.source(query.index))
    return _from_lists(query, how, shortlist(query, how), True)


def _from_lists(query: Query, how: Sampling, lists: Shortlist, bounded: bool) -> Draws:
    """Draw from lists; `bounded`: proven to hold all that is drawn from."""
    rows = len(query.hidden_states)
    ids, logits = np.full((rows, how.samples), -1, np.int32), np.full((rows, how.samples), -np.inf)
    perturbed = np.full((rows, how.samples), -np.inf, np.float32)
    for row, seed in enumerate(how.seeds):
        own = slice(lists.offsets[row], lists.offsets[row + 1])
        listed, exact = lists.ids[own], lists.logits[own]
        noise = np.empty((1, listed.size))
        gumbel_noise(seed, how.step, listed[None] + np.int32(query.index.first_id), noise)
        values = (exact - exact[0]) * query.scale + noise[0]  # rounded as kernels do
        best = np.lexsort((listed, -values))[: how.samples]
        ids[row, : best.size], logits[row, : best.size] = listed[best], exact[best]
        perturbed[row, : best.size] = values[best] + exact[0] * query.scale
    fields = np.empty((rows, FIELDS))
    csr_log_z(lists.offsets, lists.logits, query.scale, fields)
    log_z = LogZ(fields, query.scale, bounded)
    log_probs, _ = log_z.log_probs(logits, ids)
    source = CANDIDATES.name, log_z.rounded()
    return Draws(ids, log_probs, lists.provenance, *source, perturbed)
