"""Draws without replacement from all ids: the N ids with the largest x_i / T + G_i, in order.

Gumbel top-k (Kool, van Hoof, Welling 2019, Stochastic Beams and Where to Find Them). As in
lists.py, the best ids come first, and others need much noise to be among the N.
"""

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.gumbel import BLOCK, list_candidates, noise_of
from logitsieve.kernels.sampling.lists import edited_logit
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.allowed import allowed_at, is_allowed
from logitsieve.kernels.topk.descriptor import exact_logit, matrix_at, widen_hidden


@kernel(
    "(int64, float32[:,::1], int32[:,::1], float64[:,::1], uint64[::1], uint64, float64, int64,"
    " int64[::1], int32[::1], float64[::1], int32[:,::1], float64[:,::1], int32[::1], int64, int64)"
)
def distinct_sample(
    address, hidden, best, logits, seeds, step, inverse, first_id, offsets, edited, values, ids,
    noisy, scanned, start, stop,
):  # fmt: skip
    """Fill ids [B, N] and noisy [B, N], the largest values x_i inverse + G_i of draw 0, in order.

    -1 and -inf follow if edits leave fewer ids. `best` [B, K] are the best ids after edits, then
    -1, with exact `logits`. scanned [B] counts the other logits computed. Ties go by id.
    """
    descriptor = int64_pointer(address)
    matrix, dim, most, wanted = (
        matrix_at(descriptor, 0),
        hidden.shape[1],
        best.shape[1],
        ids.shape[1],
    )
    size, draw, bad = padded(matrix.rows), np.uint64(0), -1
    wide = np.empty(padded(dim), np.float64)
    equal, most_blocks = np.ones(LANES, np.float32), padded(size // BLOCK)
    blocks = np.empty(most_blocks + LANES, np.int32)
    rows = np.empty(most_blocks * BLOCK + LANES, np.int32)
    for row in range(start, stop):
        if widen_hidden(descriptor, row_of(pointer(hidden), row, dim), pointer(wide)) < 0:
            bad = row
            break
        count, scanned[row], seed, own = 0, 0, seeds[row], allowed_at(descriptor, row)
        largest, floor = logits[row, 0], np.inf
        for i in range(wanted):
            ids[row, i], noisy[row, i] = -1, -np.inf
        while count < most and best[row, count] >= 0:
            floor = (logits[row, count] - largest) * inverse
            noise = noise_of(seed, step, draw, first_id + best[row, count])
            _insert(ids, noisy, row, wanted, best[row, count], floor + noise)
            count += 1
        others = list_candidates(
            pointer(equal), pointer(equal), 0, size, first_id, noisy[row, wanted - 1] - floor, seed,
            step, draw, pointer(blocks), pointer(rows),
        )  # fmt: skip
        for i in range(others):
            other = np.int64(rows[i])
            if other >= matrix.rows or not is_allowed(own, other):
                continue
            if _listed(best, row, count, other):
                continue
            noise = noise_of(seed, step, draw, first_id + other)
            if floor + noise < noisy[row, wanted - 1]:
                continue
            logit = edited_logit((edited, values, offsets[row], offsets[row + 1]), other)
            if logit != logit:
                logit = exact_logit(matrix, pointer(wide), other)
                scanned[row] += 1
            if logit > -np.inf:
                _insert(ids, noisy, row, wanted, other, (logit - largest) * inverse + noise)
        for i in range(wanted):
            noisy[row, i] += largest * inverse
    keep_alive((wide, equal, blocks, rows))
    return bad


@inline
def _insert(ids, noisy, row, wanted, one, value):
    i = wanted - 1
    if value < noisy[row, i] or (value == noisy[row, i] and one > ids[row, i] >= 0):
        return
    while i > 0 and (
        value > noisy[row, i - 1] or (value == noisy[row, i - 1] and one < ids[row, i - 1])
    ):
        ids[row, i], noisy[row, i] = ids[row, i - 1], noisy[row, i - 1]
        i -= 1
    ids[row, i], noisy[row, i] = one, value


@inline
def _listed(best, row, count, other):
    place = 0
    while place < count and best[row, place] != other:
        place += 1
    return place < count
