"""Lanes of bytes: sixteen int32 sums of products of unsigned row bytes and a query's codes.

Every CPU computes the same sums, each by the instructions that it has: `form_of` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from logitsieve.kernels.simd.lanes import LANES, LANES32, cpu_has, spread

_BYTE, _INT16, _INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_SUMS, _BYTES = ir.VectorType(_INT32, LANES), ir.VectorType(_BYTE, 4 * LANES)
_WORDS, _PRODUCTS = ir.VectorType(_INT16, 2 * LANES), ir.VectorType(_INT32, 2 * LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


class Form(NamedTuple):
    """One way to multiply, by `products(builder, sums, rows, first plane, second plane)`.

    A query has two planes of a byte a coordinate. They hold the high and the low part of its codes,
    of which `products` takes one; or, if they are `words`, whole codes as int16: the first plane
    those of coordinates 0 and 2 of every four, the second those of 1 and 3. A sum exceeds that of
    products of signed row codes by `offset` times the sum of the query's.
    """

    products: Callable[..., Any]
    words: bool
    offset: int


class Sums(types.Type):
    """Numba's type of sixteen int32 sums in registers."""

    def __init__(self) -> None:
        super().__init__(name="Sums")


SUMS = Sums()


@register_model(Sums)
class _SumsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _SUMS)


@intrinsic
def zero_sums(typing_context):
    def codegen(context, builder, signature, arguments):
        return ir.Constant(_SUMS, None)

    return SUMS(), codegen


def _order(places):
    return ir.Constant(ir.VectorType(_INT32, len(places)), list(places))


def _bytes_by(instruction, lanes, signed):
    """A form whose instruction adds products of bytes, four to each of so many lanes."""
    vector = ir.VectorType(_INT32, lanes)

    def products(builder, sums, rows, plane, _=None):
        if signed:
            rows = builder.xor(rows, ir.Constant(_BYTES, [128] * 4 * LANES))
            operand = ir.VectorType(_BYTE, 4 * lanes)
        else:
            operand = vector
        product = builder.module.declare_intrinsic(
            instruction, fnty=ir.FunctionType(vector, [vector, operand, operand])
        )
        rows, parts = builder.bitcast(rows, _SUMS), []
        for first in range(0, LANES, lanes):
            order = _order(range(first, first + lanes))
            part, *bytes_of = (builder.shuffle_vector(x, x, order) for x in (sums, rows, plane))
            bytes_of = [builder.bitcast(x, operand) for x in bytes_of]
            parts.append(builder.call(product, [part, *bytes_of]))
        while len(parts) > 1:
            both = _order(range(2 * parts[0].type.count))
            parts = [
                builder.shuffle_vector(parts[i], parts[i + 1], both)
                for i in range(0, len(parts), 2)
            ]
        return parts[0]

    return Form(products, False, 0 if signed else 128)


def _add_pairs(builder, sums, products):
    even, odd = (
        builder.shuffle_vector(products, products, _order(range(place, 2 * LANES, 2)))
        for place in range(2)
    )
    return builder.add(sums, builder.add(even, odd))


def _products_of_words(builder, rows, plane):
    return builder.mul(
        builder.sext(rows, _PRODUCTS), builder.sext(builder.bitcast(plane, _WORDS), _PRODUCTS)
    )


def _split(builder, rows):
    """LLVM: bytes 0 and 2 of every four, and bytes 1 and 3, as words."""
    rows = builder.bitcast(rows, _WORDS)
    even = builder.and_(rows, ir.Constant(_WORDS, [255] * 2 * LANES))
    return even, builder.lshr(rows, ir.Constant(_WORDS, [8] * 2 * LANES))


def _add_words_in_pairs(builder, sums, rows, first, second):
    """Sums in the shape that LLVM turns into two `vpmaddwd` of whatever width the CPU has."""
    for words, plane in zip(_split(builder, rows), (first, second), strict=True):
        sums = _add_pairs(builder, sums, _products_of_words(builder, words, plane))
    return sums


def _add_words(builder, sums, rows, first, second):
    """The same sums in fewer additions, where no instruction adds pairs of products: `smlal`."""
    even, odd = _split(builder, rows)
    products = _products_of_words(builder, even, first)
    products = builder.add(products, _products_of_words(builder, odd, second))
    return _add_pairs(builder, sums, products)


def _add_small_bytes(builder, sums, rows, plane, _=None):
    """Sums by `vpmaddubsw`, whose sums of two products must fit a word: row bytes up to 127."""
    half, words, totals = (
        ir.VectorType(kind, count) for kind, count in ((_BYTE, 32), (_INT16, 16), (_INT32, 8))
    )
    of_bytes = builder.module.declare_intrinsic(
        "llvm.x86.avx2.pmadd.ub.sw", fnty=ir.FunctionType(words, [half, half])
    )
    of_words = builder.module.declare_intrinsic(
        "llvm.x86.avx2.pmadd.wd", fnty=ir.FunctionType(totals, [words, words])
    )
    parts, plane = [], builder.bitcast(plane, _BYTES)
    for first in (0, 32):
        order = _order(range(first, first + 32))
        pairs = builder.call(of_bytes, [builder.shuffle_vector(x, x, order) for x in (rows, plane)])
        parts.append(builder.call(of_words, [pairs, ir.Constant(words, [1] * 16)]))
    return builder.add(sums, builder.shuffle_vector(*parts, _order(range(LANES))))


AVX512_VNNI = _bytes_by("llvm.x86.avx512.vpdpbusd.512", 16, signed=False)
AVX_VNNI = _bytes_by("llvm.x86.avx512.vpdpbusd.256", 8, signed=False)
NEON_DOT = _bytes_by("llvm.aarch64.neon.sdot.v4i32.v16i8", 4, signed=True)
X86 = Form(_add_words_in_pairs, True, 128)  # SSE2, AVX2 and AVX-512 alike
OTHER = Form(_add_words, True, 128)
AVX2_CRUMBS = Form(_add_small_bytes, False, 128)


def form_of(triple: str, has: Callable[[str], bool]) -> Form:
    """The fastest form of a target of LLVM that has the features for which `has` is true."""
    if triple.startswith("x86_64"):
        narrow = AVX_VNNI if has("avxvnni") else X86
        return AVX512_VNNI if has("avx512vnni") else narrow
    return NEON_DOT if triple.startswith(("aarch64", "arm64")) and has("dotprod") else OTHER


def crumb_form_of(triple: str, has: Callable[[str], bool]) -> Form:
    """The fastest form for codes of two bits."""
    form = form_of(triple, has)
    return AVX2_CRUMBS if form is X86 and has("avx2") else form


FORM = form_of(llvm.get_process_triple(), cpu_has)
WORDS, OFFSET = FORM.words, FORM.offset
CRUMB_FORM = crumb_form_of(llvm.get_process_triple(), cpu_has)


def _load_bytes(builder, start, place):
    """LLVM: 64 bytes from 64 * place on."""
    offset = builder.mul(place, ir.Constant(place.type, 4 * LANES))
    address = builder.bitcast(builder.gep(start, [offset]), _BYTES.as_pointer())
    return builder.load(address, align=1)


def _four_everywhere(builder, plane, quad):
    words = builder.bitcast(plane, _INT32.as_pointer())
    return spread(builder, builder.load(builder.gep(words, [quad]), align=1), _SUMS)


def _sixty_four(builder, plane, piece):
    return builder.bitcast(_load_bytes(builder, plane, piece), _SUMS)


def _load_crumbs(builder, start, place):
    """LLVM: 64 codes of two bits from 16 * place on, one after the other of each byte's first."""
    offset = builder.mul(place, ir.Constant(place.type, LANES))
    vector = ir.VectorType(_BYTE, LANES)
    address = builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())
    codes, three = builder.load(address, align=1), ir.Constant(vector, [3] * LANES)
    parts = [
        builder.and_(builder.lshr(codes, ir.Constant(vector, [bits] * LANES)), three)
        for bits in range(0, 8, 2)
    ]
    halves = [builder.shuffle_vector(*parts[i : i + 2], _order(range(2 * LANES))) for i in (0, 2)]
    return builder.shuffle_vector(*halves, _order(range(4 * LANES)))


def _multiply(form, load_plane, load_rows=_load_bytes):
    @intrinsic
    def multiply(typing_context, sums, rows, first, second, place):
        def codegen(context, builder, signature, arguments):
            sums, rows, *query, place = arguments
            rows = load_rows(builder, rows, place)
            query = [load_plane(builder, plane, place) for plane in query]
            if signature.return_type == SUMS:
                return form.products(builder, sums, rows, *query)
            high, low = cgutils.unpack_tuple(builder, sums)
            if form.words:
                high = form.products(builder, high, rows, *query)
            else:
                high = form.products(builder, high, rows, query[0])
                low = form.products(builder, low, rows, query[1])
            return context.make_tuple(builder, signature.return_type, [high, low])

        return sums(sums, rows, first, second, types.intp), codegen

    return multiply


def multiply_bytes_by(form):
    """multiply(sums, rows, first, second, quad): products with one quad of a query's planes.

    sums[r] += dot(rows[quad, r, 0:4], query[4 quad : 4 quad + 4]), for a query of codes of a byte,
    whose second plane is read only of words; or, where `sums` are two, codes of fifteen bits.
    """
    return _multiply(form, _four_everywhere)


def multiply_row_by(form):
    """multiply(sums, row, first, second, piece): products with bytes 64 piece .. 64 piece + 63."""
    return _multiply(form, _sixty_four)


def multiply_crumbs_by(form):
    """multiply(sums, row, first, second, piece): products with 64 codes of two bits, 0 .. 3.

    Byte i of the sixteen of a piece has codes i, 16 + i, 32 + i and 48 + i, the first lowest. A sum
    exceeds that of products by `offset` - 128 times the sum of the query's codes.
    """
    return _multiply(form, _sixty_four, _load_crumbs)


def join_planes_by(form):
    """join(sums): sixteen sums of what `multiply` has added up in two."""

    @intrinsic
    def join(typing_context, sums):
        def codegen(context, builder, signature, arguments):
            high, low = cgutils.unpack_tuple(builder, arguments[0])
            if form.words:
                return high
            return builder.add(builder.shl(high, ir.Constant(_SUMS, [7] * LANES)), low)

        return SUMS(sums), codegen

    return join


multiply_bytes, multiply_row = multiply_bytes_by(FORM), multiply_row_by(FORM)
multiply_crumbs, join_planes = multiply_crumbs_by(CRUMB_FORM), join_planes_by(FORM)


@intrinsic
def add_sums(typing_context, left, right):
    def codegen(context, builder, signature, arguments):
        return builder.add(*arguments)

    return SUMS(left, right), codegen


@intrinsic
def store_bytes(typing_context, start, offset, lanes):
    """start[offset : offset + 16] = lanes, whole numbers from -128 to 127."""
    vector = ir.VectorType(_BYTE, LANES)

    def codegen(context, builder, signature, arguments):
        address = builder.gep(arguments[0], [arguments[1]])
        address = builder.bitcast(address, vector.as_pointer())
        builder.store(builder.fptosi(arguments[2], vector), address, align=1)
        return context.get_dummy_value()

    return types.void(start, types.intp, lanes), codegen


@intrinsic
def store_words(typing_context, first, second, offset, lanes):
    """The same as int16, four lanes after four: lanes 0 and 2 to `first`, 1 and 3 to `second`."""
    words = ir.VectorType(_INT16, LANES)

    def codegen(context, builder, signature, arguments):
        *planes, offset, lanes = arguments
        codes = builder.fptosi(lanes, words)
        for place, plane in enumerate(planes):
            half = builder.shuffle_vector(codes, codes, _order(range(place, LANES, 2)))
            address = builder.bitcast(builder.gep(plane, [offset]), half.type.as_pointer())
            builder.store(half, address, align=1)
        return context.get_dummy_value()

    return types.void(first, second, types.intp, lanes), codegen


@intrinsic
def scale_sums(typing_context, sums, correction, scales):
    """(sums - correction) * scales as sixteen float32."""

    def codegen(context, builder, signature, arguments):
        sums, correction, scales = arguments
        correction = spread(builder, builder.trunc(correction, _INT32), _SUMS)
        exact = builder.sitofp(builder.sub(sums, correction), _FLOATS)
        return builder.fmul(exact, scales)

    return LANES32(sums, types.int64, scales), codegen


@intrinsic
def store_totals(typing_context, start, offset, a, b, c, e, correction):
    """start[offset : offset + 4] = the total of each of four sums, less `correction`, as float32.

    Computed modulo 2^32, so only the difference has to fit.
    """

    def codegen(context, builder, signature, arguments):
        start, offset, a, b, c, e, correction = arguments
        halves, quarters = range(0, 2 * LANES, 8), range(0, 2 * LANES, 4)
        a_b, c_e = _add_parts(builder, a, b, halves), _add_parts(builder, c, e, halves)
        fours = _add_parts(builder, a_b, c_e, quarters)
        for swapped in (2, 1):
            order = _order([lane ^ swapped for lane in range(LANES)])
            fours = builder.add(fours, builder.shuffle_vector(fours, fours, order))
        totals = builder.shuffle_vector(fours, fours, _order(range(0, LANES, 4)))
        correction = spread(builder, builder.trunc(correction, _INT32), totals.type)
        floats = ir.VectorType(ir.FloatType(), 4)
        exact = builder.sitofp(builder.sub(totals, correction), floats)
        address = builder.bitcast(builder.gep(start, [offset]), floats.as_pointer())
        builder.store(exact, address, align=1)
        return context.get_dummy_value()

    return types.void(start, types.intp, a, b, c, e, types.int64), codegen


def _add_parts(builder, left, right, starts):
    """LLVM: the first, third, ... parts of both, which begin at `starts`, plus those after each."""
    size = starts.step
    first = [lane for start in starts[::2] for lane in range(start, start + size)]
    second = [lane + size for lane in first]
    parts = [builder.shuffle_vector(left, right, _order(lanes)) for lanes in (first, second)]
    return builder.add(*parts)
