"""LLVM vectors of sixteen lanes, of which every dot product is made.

Numba vectorises a sum in an order that depends on the CPU; these operations have one order
everywhere. A number as an operand is put into every lane.
"""

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from logitsieve.kernels.compile import emits, inline

LANES = 16
BYTE, INT16, INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
BYTES, INTEGERS = ir.VectorType(BYTE, LANES), ir.VectorType(INT32, LANES)
FLOATS, DOUBLES = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)
_SUFFIX = {ir.FloatType(): "v16f32", ir.DoubleType(): "v16f64"}


def cpu_has(feature: str) -> bool:
    features = config.CPU_FEATURES
    if features is None:
        features = get_host_cpu_features()
    return f"+{feature}" in features.split(",")


AVX512 = cpu_has("avx512f")


class Vector(types.Type):
    def __init__(self, name: str, vector: ir.VectorType, dtype: Any = None) -> None:
        self.vector, self.dtype = vector, dtype
        super().__init__(name=name)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, numba_type.vector)


class StoredType(types.Type):
    def emit_load(self, builder, start, offset):
        raise NotImplementedError

    def emit_load_first(self, builder, start, offset, count):
        return self.emit_load(builder, start, offset)  # rows in blocks are whole lanes


LANES32 = Vector("Lanes(float32)", FLOATS, types.float32)
LANES64 = Vector("Lanes(float64)", DOUBLES, types.float64)
_LANES_OF = {types.float32: LANES32, types.float64: LANES64}


def zeros_of(vector):
    return emits(vector)(lambda builder: ir.Constant(vector.vector, None))


zeros32, zeros64 = zeros_of(LANES32), zeros_of(LANES64)


def intrinsic_call(builder, name, result, arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), arguments)


def constant(kind, value):
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def spread(builder, value, vector):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, vector.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def first_lanes_mask(builder, count):
    limit = spread(builder, builder.trunc(count, INT32), INTEGERS)
    return builder.icmp_signed("<", ir.Constant(INTEGERS, list(range(LANES))), limit)


@emits(lambda value: LANES32(types.float32))
def splat32(builder, value):
    return spread(builder, value, FLOATS)


@emits(lambda start, value: _LANES_OF[start.dtype](start, start.dtype))
def splat_like(builder, start, value):
    return spread(builder, value, ir.VectorType(value.type, LANES))


def _alike(*kinds):
    (vector,) = {kind for kind in kinds if isinstance(kind, Vector)}
    return vector(*(kind if kind == vector else vector.dtype for kind in kinds))


def _vectors(builder, values):
    (vector,) = {each.type for each in values if isinstance(each.type, ir.VectorType)}
    return [each if each.type == vector else spread(builder, each, vector) for each in values]


class _Operator(AbstractTemplate):
    def generic(self, arguments, _):
        return _alike(*arguments) if any(isinstance(each, Vector) for each in arguments) else None


def _operate(symbol, of_floats, of_integers):
    def lower(context, builder, signature, arguments):
        integers = signature.return_type.vector.element == INT32
        emit = getattr(builder, of_integers if integers else of_floats)
        return emit(*_vectors(builder, arguments))

    for name in (symbol, f"i{symbol}"):
        function = getattr(operator, name)
        infer_global(function)(type(f"Vector_{name}", (_Operator,), {"key": function}))
        for kinds in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
            lower_builtin(function, *kinds)(lower)


_operate("add", "fadd", "add")
_operate("sub", "fsub", "sub")
_operate("mul", "fmul", "mul")


def _call(builder, name, arguments):
    vector = arguments[0].type
    return intrinsic_call(builder, f"llvm.{name}.{_SUFFIX[vector.element]}", vector, arguments)


def _of_one(name):
    return emits(_alike)(lambda builder, lanes: _call(builder, name, [lanes]))


def _of_two(name):
    return emits(_alike)(
        lambda builder, left, right: _call(builder, name, _vectors(builder, (left, right)))
    )


larger, smaller = _of_two("maxnum"), _of_two("minnum")
magnitude, rounded = _of_one("fabs"), _of_one("rint")


@emits(_alike)
def multiply_add(builder, left, right, total):
    """Return left * right + total, fused on some CPUs; for widened float32 no bit differs."""
    return _call(builder, "fmuladd", _vectors(builder, (left, right, total)))


@emits(lambda lanes: lanes.dtype(lanes))
def largest_lane(builder, lanes):
    element = lanes.type.element
    name = f"llvm.vector.reduce.fmax.{_SUFFIX[element]}"
    return intrinsic_call(builder, name, element, [lanes])


def vector_at(builder, start, offset, vector):
    return builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())


def _floats_at(builder, start, offset):
    element = start.type.pointee
    address = vector_at(builder, start, offset, ir.VectorType(element, LANES))
    return address, 4 if element == ir.FloatType() else 8


def _emit_load(builder, kind, start, offset):
    if isinstance(kind, StoredType):
        return kind.emit_load(builder, start, offset)
    address, size = _floats_at(builder, start, offset)
    return builder.load(address, align=size)


@intrinsic
def load(typing_context, start, offset):
    def codegen(context, builder, signature, arguments):
        return _emit_load(builder, start.dtype, *arguments)

    return _LANES_OF.get(start.dtype, LANES32)(start, types.intp), codegen


def masked_load(builder, address, count, suffix, align):
    mask, vector = first_lanes_mask(builder, count), address.type.pointee
    arguments = [address, ir.Constant(INT32, align), mask, ir.Constant(vector, None)]
    return intrinsic_call(builder, f"llvm.masked.load.{suffix}.p0", vector, arguments)


def _emit_load_first(builder, kind, start, offset, count):
    if isinstance(kind, StoredType):
        return kind.emit_load_first(builder, start, offset, count)
    address, size = _floats_at(builder, start, offset)
    return masked_load(builder, address, count, _SUFFIX[address.type.pointee.element], size)


@intrinsic
def load_first(typing_context, start, offset, count):
    """Load start[offset : offset + count], with zeros in the other lanes, which are not read."""

    def codegen(context, builder, signature, arguments):
        return _emit_load_first(builder, start.dtype, *arguments)

    return _LANES_OF.get(start.dtype, LANES32)(start, types.intp, types.intp), codegen


def _of_each(loading, *more):
    def typed(typing_context, start, offsets, place, *others):
        def codegen(context, builder, signature, arguments):
            start_, offsets_, place_, *others_ = arguments
            places = [builder.add(each, place_) for each in cgutils.unpack_tuple(builder, offsets_)]
            lanes = [loading(builder, start.dtype, start_, each, *others_) for each in places]
            return context.make_tuple(builder, signature.return_type, lanes)

        found = types.UniTuple(_LANES_OF.get(start.dtype, LANES32), len(offsets))
        return found(start, offsets, types.intp, *more), codegen

    return typed


@intrinsic
def load_each(typing_context, start, offsets, place):
    return _of_each(_emit_load)(typing_context, start, offsets, place)


@intrinsic
def load_first_each(typing_context, start, offsets, place, count):
    return _of_each(_emit_load_first, types.intp)(typing_context, start, offsets, place, count)


def _prefetch(level):
    @emits(lambda start, offset: types.void(start, types.intp))
    def emit(builder, start, offset):
        """Prefetch the cache line of start[offset], which need not be mapped."""
        read, closest, data = (ir.Constant(INT32, value) for value in (0, 4 - level, 1))
        arguments = [vector_at(builder, start, offset, BYTE), read, closest, data]
        intrinsic_call(builder, "llvm.prefetch.p0", ir.VoidType(), arguments)

    return emit


prefetch, prefetch_second = _prefetch(1), _prefetch(2)  # into the first and the second cache


@emits(lambda start, offset, lanes: types.void(start, types.intp, lanes))
def store(builder, start, offset, lanes):
    address, size = _floats_at(builder, start, offset)
    builder.store(lanes, address, align=size)


@emits(lambda lanes: LANES64(LANES32))
def widen(builder, lanes):
    return builder.fpext(lanes, DOUBLES)


def shuffle(builder, left, right, order):
    mask = ir.Constant(ir.VectorType(INT32, len(order)), list(order))
    return builder.shuffle_vector(left, right, mask)


def concatenated(builder, parts):
    while len(parts) > 1:
        both = range(2 * parts[0].type.count)
        parts = [shuffle(builder, *parts[i : i + 2], both) for i in range(0, len(parts), 2)]
    return parts[0]


def _added_in_pairs(builder, left, right):
    lanes = left.type.count + (right.type.count if right is not left else 0)
    even, odd = (shuffle(builder, left, right, range(i, lanes, 2)) for i in (0, 1))
    return builder.fadd(even, odd)


@emits(lambda lanes: lanes.dtype(lanes))
def pair_sum(builder, lanes):
    """Sum the lanes by adding adjacent lanes, then adjacent sums, and so on."""
    while lanes.type.count > 1:
        lanes = _added_in_pairs(builder, lanes, lanes)
    return builder.extract_element(lanes, ir.Constant(INT32, 0))


def _four_numbers(*sums):
    return types.UniTuple(sums[0].dtype, 4)(*sums)


def _extracted(builder, four):
    return [builder.extract_element(four, ir.Constant(INT32, i)) for i in range(4)]


@emits(_four_numbers)
def pair_sums_of_four(builder, s0, s1, s2, s3):
    """Return four times `pair_sum`, bit for bit, at little more than the cost of one."""
    halves = _added_in_pairs(builder, s0, s1), _added_in_pairs(builder, s2, s3)
    values = _added_in_pairs(builder, *halves)
    while values.type.count > 4:
        values = _added_in_pairs(builder, values, values)
    return _extracted(builder, values)


@intrinsic
def outer_zeros(typing_context, start, left, right):
    lanes = _LANES_OF[start.dtype]
    totals = types.UniTuple(lanes, len(left) * len(right))

    def codegen(context, builder, signature, arguments):
        return context.make_tuple(builder, totals, [ir.Constant(lanes.vector, None)] * len(totals))

    return totals(start, left, right), codegen


@emits(lambda left, right, totals: totals(left, right, totals))
def add_outer(builder, left, right, totals):
    """Add the products of each of `left` with right[0], then with right[1], and so on."""
    ws, xs, sums = (cgutils.unpack_tuple(builder, each) for each in (left, right, totals))
    pairs = [(w, x) for x in xs for w in ws]
    return [_call(builder, "fmuladd", [*pair, s]) for pair, s in zip(pairs, sums, strict=True)]


@emits(lambda totals: types.UniTuple(totals.dtype.dtype, len(totals))(totals))
def lane_sums(builder, totals):
    """Sum the lanes of each of four, eight, ...: add the second half to the first, and so on."""

    def fold(left, right, lanes, group):
        low = [base + i for base in range(0, lanes, group) for i in range(group // 2)]
        high = [i + group // 2 for i in low]
        return builder.fadd(*(shuffle(builder, left, right, order) for order in (low, high)))

    sums, all_ = [], cgutils.unpack_tuple(builder, totals)
    for s0, s1, s2, s3 in zip(*[iter(all_)] * 4, strict=True):
        four = fold(fold(s0, s1, 32, 16), fold(s2, s3, 32, 16), 32, 8)  # 4 lanes of each
        for group in (4, 2):
            four = fold(four, four, 4 * group, group)
        sums += _extracted(builder, four)
    return sums


@emits(lambda: types.CPointer(types.float32)())
def sixteen_floats(builder):
    """Return scratch in this function's frame."""
    return cgutils.alloca_once(builder, ir.FloatType(), 16)


@emits(lambda start, values: types.void(start, values))
def store_each(builder, start, values):
    for place, value in enumerate(cgutils.unpack_tuple(builder, values)):
        builder.store(value, cgutils.gep_inbounds(builder, start, place))


@inline
def largest_of(values, count):
    most = splat_like(values, -np.inf)
    for i in range(0, count, LANES):
        most = larger(most, load(values, i))
    return largest_lane(most)
