"""Rows that a head could not answer, answered by another: whole answers, never made-up ids.

Shape letters: B batch rows, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Bool, Candidates, Float32, TopK
from logitsieve.heads._base.head import Head, refuse_row


def repair(fallback: Head, unfilled: int, hidden: Float32, k: int, top: TopK) -> None:
    """Let `fallback` answer, in place, the rows of `top` that have scanned < 0.

    `unfilled` is a kernel's status: how many such rows there are, or -1 - r where row r is to be
    refused.
    """
    if unfilled < 0:
        refuse_row(-1 - unfilled)
    rows = np.flatnonzero(top.scanned < 0)
    for mine, theirs in zip(top, fallback.topk(hidden[rows], k), strict=True):
        mine[rows] = theirs


def worst_status(results: list[int]) -> int:
    """One status of several slices: of refused rows the first, else the sum."""
    refused = [result for result in results if result < 0]
    return max(refused) if refused else sum(results)


def replace_rows(found: Candidates, rows: Bool, other: Candidates) -> Candidates:
    """`found` with the marked rows taken from `other`, which has just those."""
    lengths = np.diff(found.offsets)
    keep = np.repeat(~rows, lengths)
    source = np.empty(rows.size, np.int64)  # where each row's ids start in [kept, other]
    source[~rows] = np.cumsum(lengths[~rows]) - lengths[~rows]
    source[rows] = keep.sum() + other.offsets[:-1]
    lengths[rows] = np.diff(other.offsets)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    order = np.arange(offsets[-1]) + np.repeat(source - offsets[:-1], lengths)
    upper = found.upper.copy()
    upper[rows] = other.upper
    return Candidates(
        offsets,
        np.concatenate([found.ids[keep], other.ids])[order],
        np.concatenate([found.logits[keep], other.logits])[order],
        upper,
    )
