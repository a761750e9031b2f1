"""From products with hyperplanes to buckets, for products that were made elsewhere.

Shape letters: B vectors, L tables, N bits a table, J >= L N products.
"""

from __future__ import annotations

from logitsieve.api.results import Float32, Int32
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.retrieval.simhash import code_of
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[:,::1], int64, int32[:,::1])")
def codes_of_products(products: Float32, bits: int, codes: Int32) -> None:
    """Fill codes [B, L] from products [B, J]: bit n of table l is the sign of product l N + n."""
    rows, tables = codes.shape
    for row in range(rows):
        sides = row_of(pointer(products), row, products.shape[1])
        for table in range(tables):
            codes[row, table] = code_of(sides, table, bits)
