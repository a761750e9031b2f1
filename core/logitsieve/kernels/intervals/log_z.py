"""log Z within a width, from the intervals of intervals.py.

Shape letters: B batch rows, D hidden size, V vocabulary, E edits of all rows.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.intervals.intervals import (
    COMPUTED,
    begin,
    intervals_at,
    intervals_room,
)
from logitsieve.kernels.intervals.narrow import narrow_sums
from logitsieve.kernels.intervals.sums import LIFTED, scale_of, write_interval
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import ROWS, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS


@kernel(
    "(int64, float32[:,::1], float64, float64, int32[::1], int64[::1], int32[::1], float64[::1],"
    " float64[:,::1], int32[::1], boolean[::1], int64, int64)"
)
def interval_log_z(
    address, hidden, inverse, width, places, offsets, edited, values, log_z, scanned, found,
    start, stop,
):  # fmt: skip
    """Fill log_z [B, 4] for rows start .. stop-1 of hidden [B, D]: log of the sum of e^{x inverse}.

    An estimate, and two numbers that it is proven to lie between, at most `width` nats apart. If
    found[r] is False, compute all logits instead: log_z[r] is unset.
    scanned [B] counts logits computed. Rows of the sketch stand at `places` [V] of its order. The
    logits of edited[offsets[r] : offsets[r+1]] are `values` [E] instead, -inf for those that do not
    count. `address` is that of the sketch's descriptor. Returns -1, or the first row that is not
    finite or too large.
    """
    descriptor = int64_pointer(address)
    dim, bad = hidden.shape[1], -1
    scratch = np.empty(intervals_room(descriptor), np.float64)
    intervals = intervals_at(descriptor, pointer(scratch), pointer(places))
    for row in range(start, stop):
        h = row_of(pointer(hidden), row, dim)
        norm = widen_hidden(descriptor, h, intervals.wide)
        if norm < 0:
            bad = row
            break
        found[row] = begin(
            descriptor, intervals, h, norm, pointer(edited), pointer(values),
            offsets[row], offsets[row + 1],
        )  # fmt: skip
        scale = scale_of(intervals, inverse)
        found[row] &= scale.lift <= LIFTED
        if found[row]:
            found[row], sums = narrow_sums(descriptor, intervals, scale, width)
        if found[row]:
            write_interval(scale, sums, row_of(pointer(log_z), row, FIELDS))
        scanned[row] = min(int(intervals.state[COMPUTED]), descriptor[ROWS])
    keep_alive(scratch)
    keep_alive(edited)
    keep_alive(values)
    keep_alive(places)
    return bad
