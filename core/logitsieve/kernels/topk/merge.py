"""The best of what constraints leave: a head's answer merged with the edited ids.

Shape letters: B batch rows, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import keep_alive, pointer
from logitsieve.kernels.topk.heap import offer, sort_best_first


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

    A row has no id twice. Edited ones of -inf do not count; there must be as many others as wanted.
    """
    rows, width = best_ids.shape
    for row in range(rows):
        kept_ids = row_of(pointer(best_ids), row, width)
        kept = row_of(pointer(best_sums), row, width)
        limit, size = wanted[row], 0
        if limit > 0:
            for i in range(offsets[row], offsets[row + 1]):
                size = offer(kept, kept_ids, size, limit, sums[i], ids[i])
            for i in range(edited_offsets[row], edited_offsets[row + 1]):
                if edited_sums[i] > -np.inf:
                    size = offer(kept, kept_ids, size, limit, edited_sums[i], edited_ids[i])
            sort_best_first(kept, kept_ids, size)
        for i in range(size, width):
            kept[i], kept_ids[i] = -np.inf, -1
    keep_alive(best_ids)
    keep_alive(best_sums)
