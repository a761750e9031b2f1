"""Sixteen int32 sums of products of rows' unsigned bytes with a query's codes.

Every CPU computes equal sums by its own instructions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils

from logitsieve.kernels.compile import emits
from logitsieve.kernels.simd.lanes import (
    BYTE,
    BYTES,
    FLOATS,
    INT16,
    INT32,
    INTEGERS,
    LANES,
    LANES32,
    Vector,
    concatenated,
    constant,
    cpu_has,
    intrinsic_call,
    shuffle,
    spread,
    vector_at,
    zeros_of,
)

SIXTY_FOUR = ir.VectorType(BYTE, 4 * LANES)
_WORDS, _PRODUCTS = ir.VectorType(INT16, 2 * LANES), ir.VectorType(INT32, 2 * LANES)


class Form(NamedTuple):
    """One way to multiply, by `products(builder, sums, rows, first plane, second plane)`.

    The planes of a query are the high and low bytes of its codes or, as `words`, its int16 codes
    of even and of odd coordinates. Sums are too large by `offset` times the sum of the codes.
    """

    products: Callable[..., Any]
    words: bool
    offset: int


SUMS = Vector("Sums", INTEGERS, types.int32)
zero_sums = zeros_of(SUMS)


def _bytes_by(instruction, lanes, signed):
    vector = ir.VectorType(INT32, lanes)

    def products(builder, sums, rows, plane, _=None):
        operand = ir.VectorType(BYTE, 4 * lanes) if signed else vector
        if signed:
            rows = builder.xor(rows, constant(SIXTY_FOUR, 128))
        rows, parts = builder.bitcast(rows, INTEGERS), []
        for first in range(0, LANES, lanes):
            order = range(first, first + lanes)
            part, *bytes_of = (shuffle(builder, x, x, order) for x in (sums, rows, plane))
            bytes_of = [builder.bitcast(x, operand) for x in bytes_of]
            parts.append(intrinsic_call(builder, instruction, vector, [part, *bytes_of]))
        return concatenated(builder, parts)

    return Form(products, False, 0 if signed else 128)


def _add_pairs(builder, sums, products):
    both = (range(place, 2 * LANES, 2) for place in range(2))
    even, odd = (shuffle(builder, products, products, order) for order in both)
    return builder.add(sums, builder.add(even, odd))


def _products_of_words(builder, rows, plane):
    return builder.mul(
        builder.sext(rows, _PRODUCTS), builder.sext(builder.bitcast(plane, _WORDS), _PRODUCTS)
    )


def _split(builder, rows):
    rows = builder.bitcast(rows, _WORDS)
    return builder.and_(rows, constant(_WORDS, 255)), builder.lshr(rows, constant(_WORDS, 8))


def _add_words_in_pairs(builder, sums, rows, first, second):
    """Add products in a form that LLVM compiles to two `vpmaddwd`."""
    for words, plane in zip(_split(builder, rows), (first, second), strict=True):
        sums = _add_pairs(builder, sums, _products_of_words(builder, words, plane))
    return sums


def _add_words(builder, sums, rows, first, second):
    even, odd = _split(builder, rows)
    products = _products_of_words(builder, even, first)
    products = builder.add(products, _products_of_words(builder, odd, second))
    return _add_pairs(builder, sums, products)


VPDPBUSD = "llvm.x86.avx512.vpdpbusd.512"
AVX512_VNNI = _bytes_by(VPDPBUSD, 16, signed=False)
AVX_VNNI = _bytes_by("llvm.x86.avx512.vpdpbusd.256", 8, signed=False)
NEON_DOT = _bytes_by("llvm.aarch64.neon.sdot.v4i32.v16i8", 4, signed=True)
X86 = Form(_add_words_in_pairs, True, 128)  # SSE2, AVX2 and AVX-512 alike
OTHER = Form(_add_words, True, 128)


def form_of(triple: str, has: Callable[[str], bool]) -> Form:
    if triple.startswith("x86_64"):
        narrow = AVX_VNNI if has("avxvnni") else X86
        return AVX512_VNNI if has("avx512vnni") else narrow
    return NEON_DOT if triple.startswith(("aarch64", "arm64")) and has("dotprod") else OTHER


FORM = form_of(llvm.get_process_triple(), cpu_has)
WORDS, OFFSET = FORM.words, FORM.offset


def load_bytes(builder, start, place, step=4 * LANES):
    """Load 64 bytes from step * place on."""
    offset = builder.mul(place, ir.Constant(place.type, step))
    return builder.load(vector_at(builder, start, offset, SIXTY_FOUR), align=1)


def _four_everywhere(builder, plane, quad):
    words = builder.bitcast(plane, INT32.as_pointer())
    return spread(builder, builder.load(builder.gep(words, [quad]), align=1), INTEGERS)


def multiply_by(form):
    """Return multiply(sums, rows, first, second, quad), which adds products with two planes.

    sums[r] += dot(rows[quad, r, 0:4], query[4 quad : 4 quad + 4]); fifteen bits need two `sums`.
    """

    @emits(lambda sums, *starts: sums(sums, *starts[:-1], types.intp))
    def multiply(builder, sums, rows, first, second, quad):
        rows = load_bytes(builder, rows, quad)
        planes = [_four_everywhere(builder, plane, quad) for plane in (first, second)]
        if sums.type == INTEGERS:
            return form.products(builder, sums, rows, *planes)
        high, low = cgutils.unpack_tuple(builder, sums)
        if form.words:
            return [form.products(builder, high, rows, *planes), low]
        both = zip((high, low), planes, strict=True)
        return [form.products(builder, each, rows, plane) for each, plane in both]

    return multiply


def join_planes_by(form):
    """Return join(sums), which makes sixteen sums of the two of `multiply`."""

    @emits(lambda sums: SUMS(sums))
    def join(builder, sums):
        high, low = cgutils.unpack_tuple(builder, sums)
        if form.words:
            return high
        return builder.add(builder.shl(high, constant(INTEGERS, 7)), low)

    return join


multiply_bytes, join_planes = multiply_by(FORM), join_planes_by(FORM)


@emits(lambda start, offset, lanes: types.void(start, types.intp, lanes))
def store_bytes(builder, start, offset, lanes):
    address = vector_at(builder, start, offset, BYTES)
    builder.store(builder.fptosi(lanes, BYTES), address, align=1)


@emits(lambda first, second, offset, lanes: types.void(first, second, types.intp, lanes))
def store_words(builder, first, second, offset, lanes):
    """Store int16, of even lanes to `first` and of odd lanes to `second`."""
    codes = builder.fptosi(lanes, ir.VectorType(INT16, LANES))
    for place, plane in enumerate((first, second)):
        half = shuffle(builder, codes, codes, range(place, LANES, 2))
        builder.store(half, vector_at(builder, plane, offset, half.type), align=1)


@emits(lambda sums, correction, scales: LANES32(sums, types.int64, scales))
def scale_sums(builder, sums, correction, scales):
    correction = spread(builder, builder.trunc(correction, INT32), INTEGERS)
    return builder.fmul(builder.sitofp(builder.sub(sums, correction), FLOATS), scales)
