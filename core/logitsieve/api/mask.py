"""Masks of allowed ids as packed bits, in the layout of xgrammar and llguidance.

A mask is int32 [B, ceil(V / 32)]; bit i % 32 of word i // 32 is 1 if the id i is allowed.
"""

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Int32, Int64


def packed(bits: Bool) -> Int32:
    """Pack bits [B, V] into a mask."""
    words = np.zeros((len(bits), -(-bits.shape[1] // 32) * 32), np.bool_)
    words[:, : bits.shape[1]] = bits
    return np.packbits(words, axis=1, bitorder="little").view(np.int32)


def unpacked(mask: Int32, vocab_size: int) -> Bool:
    """Unpack a mask into bits [B, V]."""
    bits = np.unpackbits(mask.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return bits.view(np.bool_)


def bits_of(mask: Int32, rows: Int64, ids: Int32) -> Bool:
    """Return the bits of `ids` in `rows`, arrays that broadcast together."""
    return np.asarray(mask[rows, ids >> 5] >> (ids & 31) & 1, np.bool_)


def count_bits(mask: Int32) -> Int64:
    """Count the allowed ids of each row, [B], of a mask without bits beyond V."""
    return np.asarray(np.bitwise_count(mask.view(np.uint32)).sum(axis=1, dtype=np.int64))


def check_some_bits(mask: Int32) -> None:
    """InvalidRequest names the first row of a mask that allows nothing."""
    if not (some := mask.any(axis=1)).all():
        got = f"no bit in row {some.argmin()}"
        raise InvalidRequest("constraints.mask", got, "at least one id for each row")
