"""Walsh-Hadamard transforms, and products with structured random matrices.

Yu et al. 2016, Orthogonal Random Features, section 4: sqrt(P) H D1 H D2 H D3 replaces a P x P
matrix of independent N(0, 1). H is the orthonormal Walsh-Hadamard matrix, D1 .. D3 are diagonals of
random signs. A product costs 3 P log2 P additions, not P^2.

Shape letters: B vectors, D their size, P a power of two >= D and >= 16, N blocks, J = N P products.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from logitsieve.api.results import Float32
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.lanes import LANES, load, multiply_add, splat32, store, zeros32
from logitsieve.kernels.simd.pointers import keep_alive, pointer, shift

ONE = np.float32(1)


def padded(size: int) -> int:
    return max(LANES, 1 << (size - 1).bit_length())


def random_signs(blocks: int, size: int, generator: np.random.Generator) -> Float32:
    shape = (blocks, 3, padded(size))
    return generator.integers(0, 2, shape).astype(np.float32) * 2 - 1


@intrinsic
def _transform_lanes(typing_context, lanes):
    def codegen(context, builder, signature, arguments):
        (values,) = arguments
        order = range(LANES)
        for stride in (1, 2, 4, 8):
            swapped = [i ^ stride for i in order]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), swapped)
            signs = ir.Constant(values.type, [-1.0 if i & stride else 1.0 for i in order])
            others = builder.shuffle_vector(values, values, mask)
            values = builder.fadd(others, builder.fmul(values, signs))
        return values

    return lanes(lanes), codegen


@inline
def _butterflies(values, size, stride):
    for start in range(0, size, 2 * stride):
        for i in range(start, start + stride, LANES):
            a, b = load(values, i), load(values, i + stride)
            store(values, i, multiply_add(b, splat32(ONE), a))
            store(values, i + stride, multiply_add(b, splat32(-ONE), a))


@inline
def transform(values, size):
    """Replace float32 values[:size], size from `padded`, by H values; H has entries +1 and -1."""
    for i in range(0, size, LANES):
        store(values, i, _transform_lanes(load(values, i)))
    stride = LANES
    while stride < size:
        _butterflies(values, size, stride)
        stride *= 2


@inline
def _multiply(values, factors, size):
    for i in range(0, size, LANES):
        store(values, i, multiply_add(load(values, i), load(factors, i), zeros32()))


@kernel("(float32[:,::1], float32[:,:,::1], float32[:,::1])")
def structured_products(vectors: Float32, signs: Float32, products: Float32) -> None:
    """Fill products [B, N P]: sqrt(P) H D1 H D2 H D3 times vectors [B, D <= P], signs [N, 3, P]."""
    rows, dim = vectors.shape
    blocks, _, size = signs.shape
    scratch = np.zeros(size, np.float32)
    work, scale = pointer(scratch), np.float32(1.0 / size)
    for row in range(rows):
        vector = row_of(pointer(vectors), row, dim)
        out = row_of(pointer(products), row, blocks * size)
        for block in range(blocks):
            factors = shift(pointer(signs), block * 3 * size)
            for d in range(dim):
                work[d] = vector[d] * scale
            for d in range(dim, size):
                work[d] = 0
            for part in (2, 1, 0):
                _multiply(work, shift(factors, part * size), size)
                transform(work, size)
            for d in range(size):
                out[block * size + d] = work[d]
    keep_alive(scratch)
