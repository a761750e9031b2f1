"""exp of sixteen float32 or float64 at once, and sums of it; libm's takes some 4 ns an element."""

from __future__ import annotations

from math import exp, factorial

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import (
    INTEGERS,
    LANES,
    LANES32,
    LANES64,
    larger,
    load,
    multiply_add,
    pair_sum,
    rounded,
    splat32,
    splat64,
    vector_of,
    widen,
    zeros32,
    zeros64,
)

LOWEST = np.float32(-87.0)  # e^-87 is normal; lower powers become it
LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts; products of the first with whole numbers are exact.
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Taylor's series to the seventh power: within 1e-8 of e^r for |r| <= ln 2 / 2.
SERIES = tuple(np.float32(1.0 / n) for n in (5040, 720, 120, 24, 6, 2, 1, 1))
ERROR32, ERROR64 = 2e-7, 2.0**-50  # of an exponential: proofs/exponential.py


@intrinsic
def times_power_of_two(typing_context, lanes, powers):
    """lanes * 2^powers; `powers` are whole numbers, -126 to 127, in float32."""

    def codegen(context, builder, signature, arguments):
        whole = builder.fptosi(arguments[1], INTEGERS)
        biased = builder.add(whole, ir.Constant(INTEGERS, [127] * LANES))
        bits = builder.shl(biased, ir.Constant(INTEGERS, [23] * LANES))
        return builder.fmul(arguments[0], builder.bitcast(bits, vector_of(types.float32)))

    return LANES32(LANES32, LANES32), codegen


@intrinsic
def shifted_exponents(typing_context, lanes, steps, below, limit):
    """lanes * 2^n in float64 if `below` >= `limit`, else 0; `steps` are n + 1.5 2^52.

    The low bits of such a sum are those of the whole number n. Results are normal numbers.
    """
    integers, vector = ir.VectorType(ir.IntType(64), LANES), vector_of(types.float64)

    def codegen(context, builder, signature, arguments):
        values, counts, compared, least = arguments
        exponents = builder.shl(
            builder.bitcast(counts, integers), ir.Constant(integers, [52] * LANES)
        )
        bits = builder.add(builder.bitcast(values, integers), exponents)
        kept = builder.fcmp_ordered(">=", compared, least)
        return builder.select(kept, builder.bitcast(bits, vector), ir.Constant(vector, None))

    return LANES64(LANES64, LANES64, LANES64, LANES64), codegen


@inline
def exp_lanes(x):
    """e^x for x <= 1, within ERROR32 of itself for x >= -87; e^-87 below."""
    x = larger(x, splat32(LOWEST))
    n = rounded(multiply_add(x, splat32(LOG2_E), zeros32()))
    r = multiply_add(n, splat32(-LN2_HIGH), x)
    r = multiply_add(n, splat32(-LN2_LOW), r)
    p = splat32(SERIES[0])
    p = multiply_add(p, r, splat32(SERIES[1]))
    p = multiply_add(p, r, splat32(SERIES[2]))
    p = multiply_add(p, r, splat32(SERIES[3]))
    p = multiply_add(p, r, splat32(SERIES[4]))
    p = multiply_add(p, r, splat32(SERIES[5]))
    p = multiply_add(p, r, splat32(SERIES[6]))
    p = multiply_add(p, r, splat32(SERIES[7]))
    return times_power_of_two(p, n)


LOWEST64 = -708.0  # e^-708 is normal; lower powers become 0
LOG2_E64 = 1.4426950408889634
LN2_HIGH64, LN2_LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Taylor's series to the thirteenth power: within 2^-57 of e^r for |r| <= ln 2 / 2.
SERIES64 = tuple(1.0 / factorial(n) for n in range(13, -1, -1))
WHOLE = 1.5 * 2.0**52  # a number added to it is rounded to a whole one, in its low bits


@inline
def exp64_lanes(x):
    """e^x for x <= 0 in float64, within ERROR64 of itself for x >= -708; 0 below."""
    steps = multiply_add(x, splat64(LOG2_E64), splat64(WHOLE))
    n = multiply_add(splat64(-WHOLE), splat64(1.0), steps)
    r = multiply_add(n, splat64(-LN2_HIGH64), x)
    r = multiply_add(n, splat64(-LN2_LOW64), r)
    p = splat64(SERIES64[0])
    p = multiply_add(p, r, splat64(SERIES64[1]))
    p = multiply_add(p, r, splat64(SERIES64[2]))
    p = multiply_add(p, r, splat64(SERIES64[3]))
    p = multiply_add(p, r, splat64(SERIES64[4]))
    p = multiply_add(p, r, splat64(SERIES64[5]))
    p = multiply_add(p, r, splat64(SERIES64[6]))
    p = multiply_add(p, r, splat64(SERIES64[7]))
    p = multiply_add(p, r, splat64(SERIES64[8]))
    p = multiply_add(p, r, splat64(SERIES64[9]))
    p = multiply_add(p, r, splat64(SERIES64[10]))
    p = multiply_add(p, r, splat64(SERIES64[11]))
    p = multiply_add(p, r, splat64(SERIES64[12]))
    p = multiply_add(p, r, splat64(SERIES64[13]))
    return shifted_exponents(p, steps, x, splat64(LOWEST64))


@inline
def sum_of_exponentials(values, count, most):
    """The sum of e^(x - most) over float32 values[:count], none above `most`, in float64."""
    whole = count - count % LANES
    total, one, shifted = zeros64(), splat64(1.0), splat32(-most)
    for i in range(0, whole, LANES):
        x = multiply_add(load(values, i), splat32(np.float32(1)), shifted)
        total = multiply_add(widen(exp_lanes(x)), one, total)
    tail = 0.0
    for i in range(whole, count):
        tail += exp(float(values[i]) - float(most))
    return pair_sum(total) + tail
