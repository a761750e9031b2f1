"""The best of what constraints leave: a head's answer merged with the edited ids.

Shape letters: B batch rows, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.dots import row_of
from logitsieve.kernels.heap import offer, sort_best_first
from logitsieve.kernels.pointers import keep_alive, pointer
from logitsieve.types.results import Float64, Int32, Int64


@inline
def _holds(ids, first, last, wanted):
    """Whether `wanted` is among ids[first:last], which rise."""
    end = last
    while first < last:
        middle = (first + last) // 2
        if ids[middle] < wanted:
            first = middle + 1
        else:
            last = middle
    return first < end and ids[first] == wanted


@kernel(
    "(int64[::1], int32[::1], float64[::1], int64[::1], int32[::1], float64[::1],"
    " int64[::1], int32[:,::1], float64[:,::1])"
)
def merge_edited(
    offsets: Int64,
    ids: Int32,
    sums: Float64,
    edited_offsets: Int64,
    edited_ids: Int32,
    edited_sums: Float64,
    wanted: Int64,
    best_ids: Int32,
    best_sums: Float64,
) -> None:
    """Fill the wanted[r] best of each row, and -1 with -inf beyond, in best_ids [B, K].

    A row's ids that are edited too count by their edited sums, those of -inf not at all. There must
    be as many as wanted. Edited ids rise within a row.
    """
    rows, width = best_ids.shape
    edited = pointer(edited_ids)
    for row in range(rows):
        kept_ids = row_of(pointer(best_ids), row, width)
        kept = row_of(pointer(best_sums), row, width)
        first, last, limit, size = edited_offsets[row], edited_offsets[row + 1], wanted[row], 0
        if limit > 0:
            for i in range(offsets[row], offsets[row + 1]):
                if not _holds(edited, first, last, ids[i]):
                    size = offer(kept, kept_ids, size, limit, sums[i], ids[i])
            for i in range(first, last):
                if edited_sums[i] > -np.inf:
                    size = offer(kept, kept_ids, size, limit, edited_sums[i], edited[i])
            sort_best_first(kept, kept_ids, size)
        for i in range(size, width):
            kept[i], kept_ids[i] = -np.inf, -1
    keep_alive(edited_ids)
    keep_alive(best_ids)
    keep_alive(best_sums)
