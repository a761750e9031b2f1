"""Masks of the rows of W that each query may get, which kernels read sixteen bits at a time.

A mask is int32 [B, ceil(V / 32)], for the same rows as hidden: bit i % 32 of word i // 32 allows
row i. Bits beyond V are 0.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import LANES, load, store
from logitsieve.kernels.simd.masks import EVERY_LANE, only
from logitsieve.kernels.simd.pointers import as_uint16, nowhere, shift
from logitsieve.kernels.topk.descriptor import MASK, ROWS

# A pointer to uint16 [B, stride]; with a stride of 0 every row of W is allowed.
Allowed = namedtuple("Allowed", "bits stride")


@inline
def allowed_at(descriptor, first):
    stride = (descriptor[ROWS] + 31) // 32 * 2 if descriptor[MASK] != 0 else 0
    return Allowed(shift(as_uint16(descriptor[MASK]), first * stride), stride)


@inline
def every_row():
    return Allowed(as_uint16(nowhere()), np.int64(0))


@inline
def allowed_of(allowed, q):
    return Allowed(shift(allowed.bits, q * allowed.stride), allowed.stride)


@inline
def group_bits(own, group):
    return np.int64(own.bits[group]) if own.stride != 0 else EVERY_LANE


@inline
def is_allowed(own, row):
    return own.stride == 0 or (np.int64(own.bits[row // LANES]) >> row % LANES) & 1 != 0


@inline
def _bits_from(own, row):
    """Return a bit for each of sixteen rows from `row` on; 0 beyond V."""
    place, left = row // LANES, row % LANES
    bits = np.int64(own.bits[place]) >> left
    if left != 0 and place + 1 < own.stride:
        bits |= np.int64(own.bits[place + 1]) << (LANES - left)
    return bits & EVERY_LANE


@inline
def any_allowed(own, first, last):
    """Tell whether one of rows first .. last-1, in whole lanes, is allowed."""
    if own.stride == 0:
        return True
    for row in range(first, last, LANES):  # noqa: SIM110  (a generator does not compile)
        if _bits_from(own, row) != 0:
            return True
    return False


@inline
def forbid(own, first, count, logits):
    """Make the logits of forbidden rows in first .. first+count-1 -inf, in whole lanes."""
    for i in range(0, count if own.stride != 0 else 0, LANES):
        bits = _bits_from(own, first + i)
        if bits != EVERY_LANE:
            store(logits, i, only(bits, load(logits, i)))


@inline
def forbid_listed(own, ids, count, logits):
    for i in range(count if own.stride != 0 else 0):
        if not is_allowed(own, np.int64(ids[i])):
            logits[i] = np.float32(-np.inf)


@inline
def pick_allowed(own, ids, first, last, picked):
    count = 0
    for i in range(first, last):
        picked[count] = ids[i]
        count += is_allowed(own, np.int64(ids[i]))
    return count
