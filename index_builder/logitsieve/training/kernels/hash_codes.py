"""Buckets of DWTA and SimHash, and the probability that two vectors agree in one hash.

SimHash (Charikar 2002): two vectors are on one side of a random hyperplane with probability 1 -
angle / pi.

DWTA (Chen, Shrivastava 2018; Daghaghi et al. 2020, appendix A.3): a hash is the place of the
largest of m random coordinates. If R_i coordinates are below coordinate i in both vectors, they
agree with probability sum_i C(R_i, m - 1) / C(D, m). The paper cuts windows from a permutation;
here they are independent, so that the chance of a common bucket is exactly 1 - (1 - p^K)^L.

Shape letters: K hashes of a table (for SimHash: bits), m coordinates of a window, a power of two, J
>= L K products.
"""

from __future__ import annotations

from math import acos, log2, pi

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.retrieval.hash_tables import code_of
from logitsieve.kernels.simd.dots import dots_1x4, four_from, row_of
from logitsieve.kernels.simd.masks import count_bits
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.training.kernels.random_numbers import mixed

EMPTY = -1
ATTEMPTS = 64  # to find a window that is not empty; then the first coordinate wins
WORD_BITS = 64
ONE = np.uint64(1)


def draw_windows(tables: int, hashes: int, window: int, dim: int, seed: int) -> Int32:
    """Draw uniform windows of distinct coordinates, int32 [L, K, m]; m <= D."""
    random = np.random.default_rng([seed, hashes, window])
    order = random.random((tables * hashes, dim)).argsort(axis=1)[:, :window]
    return np.ascontiguousarray(order.reshape(tables, hashes, window), np.int32)


def rank_rows(vectors: Float32) -> np.ndarray:
    """Return the ranks uint16 [B, D] of each vector's coordinates; ties go by place."""
    order = np.argsort(vectors, axis=1, kind="stable")
    ranks = np.empty(vectors.shape, np.uint16)
    np.put_along_axis(ranks, order, np.arange(vectors.shape[1], dtype=np.uint16)[None], axis=1)
    return ranks


def window_chances(dim: int, window: int) -> Float64:
    """Return C(R, m - 1) / C(D, m) for R = 0 .. D-1."""
    below = np.arange(dim, dtype=np.float64)
    chances = np.full(dim, window / dim)
    for i in range(window - 1):
        chances *= np.maximum(below - i, 0) / (dim - 1 - i)
    return chances


@inline
def _winner(vector, windows, number, size):
    best, largest, zeros = 0, vector[windows[number * size]], True
    for i in range(size):
        value = vector[windows[number * size + i]]
        zeros &= value == 0
        if value > largest:
            best, largest = i, value
    return EMPTY if zeros else best


@inline
def _borrowed(winners, number):
    for attempt in range(ATTEMPTS):
        other = mixed(np.uint64(number), attempt) % np.uint64(winners.size)
        if winners[other] != EMPTY:
            return winners[other]
    return 0


@kernel("(float32[:,::1], int32[:,:,::1], int32[:,::1])")
def dwta_codes(vectors: Float32, windows: Int32, codes: Int32) -> None:
    """Fill codes [B, L] of vectors [B, D]; windows [L, K, m] of zeros borrow another's winner."""
    tables, hashes, size = windows.shape
    bits = int(log2(size))
    flat, winners = windows.ravel(), np.empty(tables * hashes, np.int32)
    for row in range(vectors.shape[0]):
        for number in range(winners.size):
            winners[number] = _winner(vectors[row], flat, number, size)
        for table in range(tables):
            code = 0
            for k in range(hashes):
                number = table * hashes + k
                won = winners[number]
                code |= (_borrowed(winners, number) if won == EMPTY else won) << (k * bits)
            codes[row, table] = code


@inline
def _ones_below(words, place):
    word = place // WORD_BITS
    count = count_bits(words[word] & ((ONE << np.uint64(place % WORD_BITS)) - ONE))
    for i in range(word):
        count += count_bits(words[i])
    return count


@kernel("(uint16[:,::1], uint16[:,::1], float64[::1], int64[::1], int32[::1])")
def dwta_agreements(
    queries: np.ndarray, rows: np.ndarray, chances: Float64, offsets: Int64, ids: Int32
) -> Float64:
    """Return the chances [E] that a query and a row (CSR) agree in a hash, by ranks: O(E D^2)."""
    dim, out = queries.shape[1], np.empty(ids.size)
    order, words = np.empty(dim, np.int64), np.empty(dim // WORD_BITS + 1, np.uint64)
    for query in range(queries.shape[0]):
        for d in range(dim):
            order[queries[query, d]] = d
        for e in range(offsets[query], offsets[query + 1]):
            words[:] = 0
            total = 0.0
            for d in order:
                # The coordinates before d in `order` are below it in the query.
                place = np.int64(rows[ids[e], d])
                total += chances[_ones_below(words, place)]
                words[place // WORD_BITS] |= ONE << np.uint64(place % WORD_BITS)
            out[e] = total
    return out


@kernel("(float32[:,::1], float32[:,::1], int64[::1], int32[::1])")
def simhash_agreements(queries: Float32, rows: Float32, offsets: Int64, ids: Int32) -> Float64:
    """Return the chances [E] that a query and a row (CSR), of length 1 or 0, are on one side."""
    dim, out = queries.shape[1], np.empty(ids.size)
    start = pointer(rows)
    for query in range(queries.shape[0]):
        vector, end = row_of(pointer(queries), query, dim), offsets[query + 1]
        for e in range(offsets[query], end, 4):
            i, j, k, m = four_from(e, end)
            i, j, k, m = ids[i] * dim, ids[j] * dim, ids[k] * dim, ids[m] * dim
            cosines = dots_1x4(start, i, j, k, m, vector, dim)
            for n in range(min(4, end - e)):
                cosine = min(max(np.float64(cosines[n]), -1.0), 1.0)
                out[e + n] = 1.0 - acos(cosine) / pi
    return out


@kernel("(float32[:,::1], int64, int32[:,::1])")
def codes_of_products(products: Float32, bits: int, codes: Int32) -> None:
    """Fill codes [B, L] from products [B, J]: bit n of table l is the sign of product l K + n."""
    rows, tables = codes.shape
    for row in range(rows):
        sides = row_of(pointer(products), row, products.shape[1])
        for table in range(tables):
            codes[row, table] = code_of(sides, table, bits)
