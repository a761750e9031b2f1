"""The ids that top-k, top-p and min-p leave, by Hugging Face's definitions and in its order.

Holtzman et al. 2020 (top-p), Nguyen et al. 2024 (min-p). Top-k keeps exactly k, ties by the lower
id. A nucleus is decided by the proven bounds of log Z; where they leave it open, by the exact log Z
in float64; where that does too, by all logits: never guessed.

Shape letters: B batch rows, D hidden size, V vocabulary, L ids of all lists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float64, Int32, Int64, Provenance
from logitsieve.decoding.constrained import BestLogits, best_edited
from logitsieve.decoding.logit_edits import offsets_of, unedited
from logitsieve.decoding.normalizers import CERTIFIED, Query
from logitsieve.kernels.sampling.nucleus import OPEN, SHORT, cut_lists

FIRST, GROWTH = 64, 8  # ids looked at where top-k names no number, and how many times more next


class Shortlist(NamedTuple):
    """Row r's ids are ids[offsets[r]:offsets[r+1]], best first."""

    offsets: Int64  # [B+1]
    ids: Int32  # [L]
    logits: Float64  # [L]
    provenance: Provenance  # all V are scanned where the exact log Z decided


def shortlist(query: Query, how: Sampling) -> Shortlist:
    """The ids that the filters leave of each row of the query; one id at temperature 0.

    Each row's list grows by itself until it holds all that remains, so that it does not depend on
    the batch.
    """
    rows, size, softmax = len(query.hidden), query.index.vocab_size, query.index.softmax
    edits = unedited(rows) if query.edits is None else query.edits
    query = query._replace(edits=edits, k=1, scale=1.0 / (how.temperature or 1.0))
    limits, wanted = _limits(how, edits.remaining(size), edits.allow_list)
    masses = _Masses(query, how)
    pieces, pending = [], np.arange(rows)
    while pending.size:
        part = edits.rows(pending)
        best = best_edited(softmax, query.head, query.hidden[pending], wanted[pending], part)
        masses.find(pending[wanted[pending] < limits[pending]])
        others = limits[pending] - wanted[pending]
        lengths = _cut(best, wanted[pending], others, how, masses.log_z[pending])
        settled, open_, computed = lengths > 0, lengths == OPEN, masses.computed[pending]
        pieces.append((pending[settled], best.rows(settled), lengths[settled]))
        masses.compute(pending[open_ & ~computed])
        short = pending[(lengths == SHORT) | (open_ & computed)]
        wanted[short] = np.minimum(GROWTH * wanted[short], limits[short])
        pending = pending[~settled]
    return _in_order(rows, pieces, np.where(masses.computed, size, 0))


def _limits(how: Sampling, remaining: Int64, allow_list: Bool) -> tuple[Int64, Int64]:
    """[B] how many ids there are to choose from at most, and how many to look at first."""
    if how.temperature == 0.0:
        remaining = np.minimum(remaining, 1)
    if how.top_k > 0:
        remaining = np.minimum(remaining, how.top_k)
    whole = allow_list | (how.top_k > 0) | (how.top_p == 1.0 and how.min_p == 0.0)
    return remaining, np.where(whole, remaining, np.minimum(remaining, FIRST))


class _Masses:
    """Bounds of the log Z of each row, where top-p needs them."""

    def __init__(self, query: Query, how: Sampling) -> None:
        self._query, self._needed = query, how.top_p < 1.0
        self.log_z = np.full((len(query.hidden), 2), np.nan)
        self.computed = np.zeros(len(query.hidden), np.bool_)  # exactly

    def find(self, rows: Int64) -> None:
        """Bound the rows that have no bounds yet: by a proof, if the index has a sketch."""
        rows = rows[np.isnan(self.log_z[rows, 0])]
        if not rows.size or not self._needed:
            return
        if "certified" not in self._query.index.heads:
            self.compute(rows)
            return
        bounds = CERTIFIED.log_z(self._query.rows(rows))
        self.log_z[rows, 0], self.log_z[rows, 1] = bounds.low, bounds.high

    def compute(self, rows: Int64) -> None:
        """Compute the exact log Z of `rows`, which have no allow list."""
        if rows.size:
            exact = self._query.index.head("exact")
            log_z = self._query.rows(rows).drawn_log_z(exact)
            self.log_z[rows], self.computed[rows] = log_z[:, None], True


def _cut(best: BestLogits, wanted: Int64, others: Int64, how: Sampling, log_z: Float64) -> Int64:
    lengths, scale = np.empty(len(wanted), np.int64), 1.0 / (how.temperature or 1.0)
    offsets, logits = offsets_of(wanted), best.logits[_within(best, wanted)]
    cut_lists(offsets, logits, others, scale, how.top_p, how.min_p, log_z, lengths)
    return lengths


def _within(best: BestLogits, lengths: Int64) -> Bool:
    """[B, K] the first lengths[r] places of each row."""
    return np.asarray(np.arange(best.ids.shape[1]) < lengths[:, None])


def _in_order(
    rows: int, pieces: list[tuple[Int64, BestLogits, Int64]], computed: Int64
) -> Shortlist:
    """Settled rows in their order; `computed` logits were scanned beside the head's."""
    owners = np.concatenate([np.repeat(owner, lengths) for owner, _, lengths in pieces])
    order = np.argsort(owners, kind="stable")
    kept = [_within(best, lengths) for _, best, lengths in pieces]
    bests = [best for _, best, _ in pieces]
    ids = np.concatenate([best.ids[mask] for best, mask in zip(bests, kept, strict=True)])
    logits = np.concatenate([best.logits[mask] for best, mask in zip(bests, kept, strict=True)])
    by_row = np.argsort(np.concatenate([owner for owner, _, _ in pieces]))
    provenance = Provenance.joined([best.provenance for best in bests], by_row)
    scanned = np.maximum(provenance.scanned, computed).astype(np.int32)
    return Shortlist(
        offsets_of(np.bincount(owners, minlength=rows)),
        ids[order].astype(np.int32),
        logits[order],
        provenance._replace(scanned=scanned),
    )
