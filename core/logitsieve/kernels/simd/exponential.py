"""exp of sixteen float32 or float64 at once, and sums of exponentials."""

from math import exp, factorial

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple

from logitsieve.kernels.compile import emits, inline
from logitsieve.kernels.simd.lanes import (
    DOUBLES,
    FLOATS,
    INTEGERS,
    LANES,
    LANES32,
    LANES64,
    constant,
    intrinsic_call,
    larger,
    load,
    multiply_add,
    pair_sum,
    rounded,
    spread,
    widen,
    zeros64,
)

LOWEST = np.float32(-87.0)  # e^-87 is normal
LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts; products of the first with integers are exact.
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Taylor's series: within 1e-8 of e^r for |r| <= ln 2 / 2.
SERIES = tuple(np.float32(1.0 / n) for n in (5040, 720, 120, 24, 6, 2, 1, 1))
ERROR32, ERROR64 = 2e-7, 2.0**-50  # relative: proofs/exponential.py


@emits(lambda lanes, powers: LANES32(LANES32, LANES32))
def times_power_of_two(builder, lanes, powers):
    """Return lanes * 2^powers; `powers` are integers from -126 to 127 in float32."""
    biased = builder.add(builder.fptosi(powers, INTEGERS), constant(INTEGERS, 127))
    bits = builder.shl(biased, constant(INTEGERS, 23))
    return builder.fmul(lanes, builder.bitcast(bits, FLOATS))


@emits(lambda *_: LANES64(LANES64, LANES64, LANES64, types.float64))
def shifted_exponents(builder, lanes, steps, compared, limit):
    """Return lanes * 2^n in float64 if `compared` >= `limit`, else 0; `steps` are n + WHOLE.

    Results must be normal numbers.
    """
    integers = ir.VectorType(ir.IntType(64), LANES)
    exponents = builder.shl(builder.bitcast(steps, integers), constant(integers, 52))
    bits = builder.add(builder.bitcast(lanes, integers), exponents)
    normal = builder.fcmp_ordered(">=", compared, spread(builder, limit, DOUBLES))
    return builder.select(normal, builder.bitcast(bits, DOUBLES), ir.Constant(DOUBLES, None))


@emits(lambda coefficients, lanes: lanes(coefficients, lanes))
def polynomial(builder, coefficients, lanes):
    kind, size = lanes.type, 32 if lanes.type == FLOATS else 64
    total, *others = (spread(builder, x, kind) for x in unpack_tuple(builder, coefficients))
    for each in others:
        total = intrinsic_call(builder, f"llvm.fmuladd.v16f{size}", kind, [total, lanes, each])
    return total


@inline
def exp_lanes(x):
    """Return e^x for x <= 1 with a relative error of ERROR32 for x >= -87, else e^-87."""
    x = larger(x, LOWEST)
    n = rounded(x * LOG2_E)
    r = multiply_add(n, -LN2_HIGH, x)
    r = multiply_add(n, -LN2_LOW, r)
    return times_power_of_two(polynomial(SERIES, r), n)


LOWEST64 = -708.0  # e^-708 is normal
LOG2_E64 = 1.4426950408889634
LN2_HIGH64, LN2_LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Taylor's series: within 2^-57 of e^r for |r| <= ln 2 / 2.
SERIES64 = tuple(1.0 / factorial(n) for n in range(13, -1, -1))
WHOLE = 1.5 * 2.0**52  # the low bits of x + WHOLE are x, rounded


@inline
def exp64_lanes(x):
    """Return e^x for x <= 0 with a relative error of ERROR64 for x >= -708, else 0."""
    steps = multiply_add(x, LOG2_E64, WHOLE)
    n = steps - WHOLE
    r = multiply_add(n, -LN2_HIGH64, x)
    r = multiply_add(n, -LN2_LOW64, r)
    return shifted_exponents(polynomial(SERIES64, r), steps, x, LOWEST64)


@inline
def sum_of_exponentials(values, count, scale, most):
    """Sum e^{scale x - most} of float32, for exponents as in `exp_lanes`."""
    end, total, tail = count - count % LANES, zeros64(), 0.0
    for i in range(0, end, LANES):
        total += widen(exp_lanes(multiply_add(load(values, i), scale, -most)))
    for i in range(end, count):
        tail += exp(float(scale) * float(values[i]) - float(most))
    return pair_sum(total) + tail
