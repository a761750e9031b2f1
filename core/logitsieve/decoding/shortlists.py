"""Lists of each row's best ids, and which of them filters leave."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import NamedTuple, cast

import numpy as np

from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float64, Int32, Int64, Provenance, offsets_of
from logitsieve.decoding.logit_edits import BestLogits, best_edited, best_unedited
from logitsieve.decoding.normalizers import (
    FULL,
    LogZ,
    Query,
    best_with_log_z,
    found_by,
    quick_log_z,
)
from logitsieve.heads.sketch import SketchHead
from logitsieve.kernels.sampling.lists import cut_best, cut_lists


class Shortlist(NamedTuple):
    """Row r's ids are ids[offsets[r]:offsets[r+1]], best first."""

    offsets: Int64  # [B+1]
    ids: Int32  # [L]
    logits: Float64  # [L]
    provenance: Provenance


def shortlist(query: Query, how: Sampling) -> Shortlist:
    """Return the ids that top-k, top-p and min-p leave of each row; one id at temperature 0.

    Definitions and order are Hugging Face's: Holtzman et al. 2020 (top-p), Nguyen et al. 2024
    (min-p), but ties at the k-th id go to the lower id, so that exactly k remain.
    """
    most = 1 if how.temperature == 0.0 else how.top_k
    # Filters cut the list below, whatever the noise.
    best = needed_best(query, how._replace(samples=0, min_p=0.0), most)[0]
    wanted = _lengths(best)
    lengths, logits = np.empty(len(wanted), np.int64), best.logits[_first(best, wanted)]
    cut_lists(offsets_of(wanted), logits, how.scale, *how.filters, lengths)
    return _cut(best, lengths)


def left_by_filters(best: BestLogits, log_z: LogZ, how: Sampling) -> tuple[Shortlist, Int64]:
    """Return the ids that top-p and min-p leave of all V, and [B] their number.

    `cut_best` defines the number, which is negative if log Z does not settle it: such a row's list
    has one id.
    """
    wanted = _lengths(best)
    lengths, logits = np.empty(len(wanted), np.int64), best.logits[_first(best, wanted)]
    cut_best(offsets_of(wanted), logits, log_z.scale, *how.filters, log_z.fields, lengths)
    return _cut(best, np.maximum(lengths, 1)), lengths


def needed_best(query: Query, how: Sampling, most: int) -> tuple[BestLogits, Float64]:
    """Return the `most` (0: all) best ids, and floors [B] of their logits.

    An id with a logit below its row's floor may be missing: filters remove it, or it wins only with
    unusually large noise.
    """
    rows, k = len(query.hidden_states), min(most or query.index.vocab_size, query.index.vocab_size)
    if not query.plain or not query.head.selects(k, rows):
        return listed_best(query, most), no_floors(rows)
    best, floors, _ = selected_best(query, how, k, summed=False)
    return best, floors


def selected_best(
    query: Query, how: Sampling, k: int, *, summed: bool
) -> tuple[BestLogits, Float64, LogZ]:
    """Return `needed_best` of a head that `selects` k ids, and its log Z if `summed`."""
    head = cast(SketchHead, query.head)
    best, floors = head.needed(
        query.hidden_states, k, how, query.scale, query.index.first_id, summed=summed
    )
    found, log_z = found_by(head, best, query.scale, summed)
    return found, floors, log_z


def listed_best(query: Query, most: int) -> BestLogits:
    """Return the `most` (0: all) best ids that edits allow."""
    softmax, head, hidden_states, size = query.index.softmax, *query[1:3], query.index.vocab_size
    if query.edits is None:
        return best_unedited(softmax, head, hidden_states, min(most or size, size))
    wanted = query.edits.remaining(size)
    if most > 0:
        wanted = np.minimum(wanted, most)
    return best_edited(softmax, head, hidden_states, wanted, query.edits)


def listed_with_log_z(query: Query, most: int) -> tuple[BestLogits, LogZ]:
    """Return `listed_best` by the head `full`, and log Z of all ids."""
    full = FULL.source(query)
    if not query.plain:
        query = query._replace(head=full)
        return listed_best(query, most), quick_log_z(query)
    return best_with_log_z(query._replace(k=min(most, query.index.vocab_size)), full)


@lru_cache(maxsize=64)
def unknown_log_z(rows: int) -> Float64:
    """Return LogZ's fields, [B, 4], with infinite intervals."""
    fields = np.tile((0.0, 0.0, -inf, inf), (rows, 1))
    fields.flags.writeable = False
    return fields


@lru_cache(maxsize=64)
def no_floors(rows: int) -> Float64:
    """Return floors [B] for lists without a missing id."""
    floors = np.full(rows, -inf)
    floors.flags.writeable = False
    return floors


def _lengths(best: BestLogits) -> Int64:
    return np.asarray((best.ids >= 0).sum(axis=1))


def _cut(best: BestLogits, lengths: Int64) -> Shortlist:
    kept = _first(best, lengths)
    return Shortlist(offsets_of(lengths), best.ids[kept], best.logits[kept], best.provenance)


def _first(best: BestLogits, lengths: Int64) -> Bool:
    return np.asarray(np.arange(best.ids.shape[1]) < lengths[:, None])
