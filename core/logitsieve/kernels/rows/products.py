"""Integer products of a row's codes with the 15-bit codes r of a query.

The query is approximated by g = scale * r. A row's dot with g is

    scale * sum over spans of (the row's scale * sum of code * r + low * sum of r).

Both inner sums are exact in float32: eight lanes hold four products each, below 2^24. The scratch
for a query has float32 values: the scale, then an eighth of the sum of r for each 32 coordinates,
then from `code_header` on r as int16. D is a multiple of 32.
"""

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logitsieve.kernels.compile import emits, inline
from logitsieve.kernels.rows.blocks import READERS
from logitsieve.kernels.rows.stored_types import WORDS, load_at, moved
from logitsieve.kernels.simd.lanes import (
    INT32,
    INTEGERS,
    LANES,
    Vector,
    intrinsic_call,
    load,
    multiply_add,
    pair_sum,
    rounded,
    shuffle,
    spread,
    widen,
    zeros32,
    zeros64,
    zeros_of,
)
from logitsieve.kernels.simd.planes import NO_LARGER, plane_scale
from logitsieve.kernels.simd.pointers import as_uint8, shift

SPAN = 32  # coordinates
EIGHT = 8
NEIGHBOURS = llvm.get_process_triple().startswith("x86_64")
_FLOATS, _FEW = ir.VectorType(ir.FloatType(), EIGHT), ir.VectorType(ir.FloatType(), 4)


EIGHT_SUMS = Vector("Eight", _FLOATS)
zero_eight = zeros_of(EIGHT_SUMS)


def sums_of_pairs(builder, codes, words, neighbours=NEIGHBOURS):
    products = builder.mul(builder.sext(codes, INTEGERS), builder.sext(words, INTEGERS))
    lanes = range(0, LANES, 2) if neighbours else range(EIGHT)
    further = [lane + (1 if neighbours else EIGHT) for lane in lanes]
    return builder.add(*(shuffle(builder, products, products, each) for each in (lanes, further)))


def _multiply_add(builder, *factors_and_total):
    return intrinsic_call(builder, "llvm.fmuladd.v8f32", _FLOATS, factors_and_total)


@intrinsic
def block_at(typing_context, stored, offset):
    def codegen(context, builder, signature, arguments):
        return builder.gep(arguments[0], [stored.dtype.place(builder, *arguments).begin])

    return stored(stored, types.intp), codegen


@intrinsic
def add_products(typing_context, total, row, offset, words, eighths):
    def codegen(context, builder, signature, arguments):
        total, start, offset, words, eighths = arguments
        reader, first = READERS[row.dtype.kind], row.dtype.place(builder, start, offset)
        both = first, first._replace(number=moved(builder, first.number, LANES))
        at = builder.mul(offset, ir.Constant(offset.type, 2))
        sums = [
            sums_of_pairs(
                builder,
                builder.sext(reader.codes(place), WORDS),
                load_at(builder, words, moved(builder, at, 2 * LANES * i), WORDS),
            )
            for i, place in enumerate(both)
        ]
        if reader.span == SPAN:
            sums = [builder.add(*sums)]
        for place, each in zip(both, sums, strict=False):
            codes = builder.sitofp(each, _FLOATS)
            total = _multiply_add(builder, codes, reader.scale(place, _FLOATS), total)
        if reader.low is not None:
            span = builder.lshr(offset, ir.Constant(offset.type, SPAN.bit_length() - 1))
            eighth = builder.load(builder.gep(eighths, [span]))
            eighth = spread(builder, eighth, _FLOATS)
            total = _multiply_add(builder, reader.low(first, _FLOATS), eighth, total)
        return total

    return EIGHT_SUMS(total, row, types.intp, words, eighths), codegen


@emits(lambda start, scale, *sums: types.void(start, types.float32, *sums))
def store_four(builder, start, scale, s0, s1, s2, s3):
    four = builder.fmul(_four_sums(builder, s0, s1, s2, s3), spread(builder, scale, _FEW))
    builder.store(four, builder.bitcast(start, _FEW.as_pointer()), align=4)


@emits(lambda *sums: types.UniTuple(types.float32, 4)(*sums))
def four_sums(builder, s0, s1, s2, s3):
    four = _four_sums(builder, s0, s1, s2, s3)
    return [builder.extract_element(four, ir.Constant(INT32, lane)) for lane in range(4)]


def _four_sums(builder, s0, s1, s2, s3):
    both = (_folded(builder, *each, _SINGLE) for each in ((s0, s1), (s2, s3)))
    four = _folded(builder, *both, _PAIRED)
    return builder.fadd(*(shuffle(builder, four, four, range(i, i + 4)) for i in (0, 4)))


# Lanes of two vectors of eight. Each is added to the lane two further on, in its half register.
_SINGLE = 0, 8, 1, 9, 4, 12, 5, 13
_PAIRED = 0, 1, 8, 9, 4, 5, 12, 13


def _folded(builder, left, right, lanes):
    further = [lane + 2 for lane in lanes]
    return builder.fadd(*(shuffle(builder, left, right, order) for order in (lanes, further)))


@emits(lambda words, place, lanes: types.void(words, types.intp, lanes))
def _store_codes(builder, words, place, lanes):
    at = builder.mul(place, ir.Constant(place.type, 2))
    address = builder.bitcast(builder.gep(words, [at]), WORDS.as_pointer())
    builder.store(builder.fptosi(lanes, WORDS), address, align=1)


@inline
def code_header(dim):
    return (dim // SPAN + LANES) // LANES * LANES


@inline
def codes_size(dim):
    return (code_header(dim) + (dim + SPAN) // 2) // 2


@inline
def encode_words(h, dim, codes):
    """Write the codes of a row of hidden; return ||h - g||^2."""
    scale = plane_scale(h, dim)
    codes[0] = scale
    words = as_uint8(shift(codes, code_header(dim)))
    factor = np.float32(NO_LARGER) / scale if scale > 0 else np.float32(0)
    errors, total = zeros64(), zeros64()
    for d in range(0, dim, LANES):
        x = load(h, d)
        r = rounded(x * factor) if scale > 0 else zeros32()
        _store_codes(words, d, r)
        error = multiply_add(widen(r), -float(scale), widen(x))
        errors = multiply_add(error, error, errors)
        total = total + widen(r) if d % SPAN else widen(r)
        if d % SPAN:
            codes[d // SPAN + 1] = np.float32(pair_sum(total) / EIGHT)
    return pair_sum(errors)


def coded_dots(stored, i, j, k, m, codes, dim, sums):
    words, eighths = as_uint8(shift(codes, code_header(dim))), shift(codes, 1)
    r0, r1, r2, r3 = (
        block_at(stored, i), block_at(stored, j), block_at(stored, k), block_at(stored, m),
    )  # fmt: skip
    s0, s1, s2, s3 = zero_eight(), zero_eight(), zero_eight(), zero_eight()
    for d in range(0, dim, SPAN):
        s0 = add_products(s0, r0, d, words, eighths)
        s1 = add_products(s1, r1, d, words, eighths)
        s2 = add_products(s2, r2, d, words, eighths)
        s3 = add_products(s3, r3, d, words, eighths)
    store_four(sums, codes[0], s0, s1, s2, s3)
    return dim


def coded_few(stored, rows, bias, codes, j, k, m, count, dim, logits, apart):
    """Fill the logits of `rows` rows for 2 to 4 queries, which have their codes at 0, j, k and m.

    The logits of neighbouring queries are `apart`. For 3 queries, 4 are computed.
    """
    if count == 2:
        _coded_twos(stored, rows, bias, codes, j, dim, logits, apart)
        return rows
    header = code_header(dim)
    c1, c2, c3 = shift(codes, j), shift(codes, k), shift(codes, m)
    w0, w1 = as_uint8(shift(codes, header)), as_uint8(shift(c1, header))
    w2, w3 = as_uint8(shift(c2, header)), as_uint8(shift(c3, header))
    e0, e1, e2, e3 = shift(codes, 1), shift(c1, 1), shift(c2, 1), shift(c3, 1)
    for r in range(rows):
        row = block_at(stored, r * dim)
        s0, s1, s2, s3 = zero_eight(), zero_eight(), zero_eight(), zero_eight()
        for d in range(0, dim, SPAN):
            s0 = add_products(s0, row, d, w0, e0)
            s1 = add_products(s1, row, d, w1, e1)
            s2 = add_products(s2, row, d, w2, e2)
            s3 = add_products(s3, row, d, w3, e3)
        sums, place = four_sums(s0, s1, s2, s3), shift(logits, r)
        place[0], place[apart] = sums[0] * codes[0] + bias[r], sums[1] * c1[0] + bias[r]
        place[2 * apart] = sums[2] * c2[0] + bias[r]
        place[3 * apart] = sums[3] * c3[0] + bias[r]
    return rows


@inline
def _coded_twos(stored, rows, bias, codes, j, dim, logits, apart):
    header, c1 = code_header(dim), shift(codes, j)
    w0, w1 = as_uint8(shift(codes, header)), as_uint8(shift(c1, header))
    e0, e1 = shift(codes, 1), shift(c1, 1)
    for r in range(0, rows, 2):
        s = min(r + 1, rows - 1)
        row, other = block_at(stored, r * dim), block_at(stored, s * dim)
        s0, s1, s2, s3 = zero_eight(), zero_eight(), zero_eight(), zero_eight()
        for d in range(0, dim, SPAN):
            s0 = add_products(s0, row, d, w0, e0)
            s1 = add_products(s1, row, d, w1, e1)
            s2 = add_products(s2, other, d, w0, e0)
            s3 = add_products(s3, other, d, w1, e1)
        sums = four_sums(s0, s1, s2, s3)
        logits[r], logits[apart + r] = sums[0] * codes[0] + bias[r], sums[1] * c1[0] + bias[r]
        logits[s], logits[apart + s] = sums[2] * codes[0] + bias[s], sums[3] * c1[0] + bias[s]
