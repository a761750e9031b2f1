"""SimHash: buckets from products with hyperplanes, and the probability that two vectors agree.

A random hyperplane has two vectors on one side with probability 1 - angle / pi (Charikar 2002).

Shape letters: B queries or vectors, D hidden size, V rows, E pairs of a query and a row, L tables,
N bits a table, J >= L N products.
"""

from __future__ import annotations

from math import acos, pi

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.retrieval.simhash import code_of
from logitsieve.kernels.simd.dots import dots_1x4, row_of
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[:,::1], float32[:,::1], int64[::1], int32[::1], float64[::1])")
def simhash_agreements(
    queries: Float32, rows: Float32, offsets: Int64, ids: Int32, out: Float64
) -> None:
    """Fill out [E]: the probability that a query and each of its rows (CSR) are on one side.

    queries [B, D] and rows [V, D] are of length 1; a vector of zeros is at right angles to all.
    """
    dim = queries.shape[1]
    start = pointer(rows)
    for query in range(queries.shape[0]):
        vector, last = row_of(pointer(queries), query, dim), offsets[query + 1] - 1
        for e in range(offsets[query], offsets[query + 1], 4):
            a, b = ids[e], ids[min(e + 1, last)]
            c, d = ids[min(e + 2, last)], ids[min(e + 3, last)]
            cosines = dots_1x4(start, a * dim, b * dim, c * dim, d * dim, vector, dim)
            for i in range(min(4, last + 1 - e)):
                cosine = min(max(np.float64(cosines[i]), -1.0), 1.0)
                out[e + i] = 1.0 - acos(cosine) / pi


@kernel("(float32[:,::1], int64, int32[:,::1])")
def codes_of_products(products: Float32, bits: int, codes: Int32) -> None:
    """Fill codes [B, L] from products [B, J]: bit n of table l is the sign of product l N + n."""
    rows, tables = codes.shape
    for row in range(rows):
        sides = row_of(pointer(products), row, products.shape[1])
        for table in range(tables):
            codes[row, table] = code_of(sides, table, bits)
