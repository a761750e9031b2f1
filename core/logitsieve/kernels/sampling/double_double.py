"""log Z in double-double arithmetic: pairs of float64 whose sum is the number, to some 2^-100.

Dekker 1971, A Floating-Point Technique for Extending the Available Precision. The exponentials are
Taylor series of the exponent over 256, then squared eight times as e^x - 1.

Shape letters: B batch rows, D hidden size.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial, ldexp, log1p

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.csr import exact_logit
from logitsieve.kernels.topk.descriptor import matrix_at, widen_hidden

ERROR = 2.0**-76  # nats that log Z is off by, at most, for up to 2^24 rows

# ln 2 as two numbers of 32 bits, whose products with whole numbers to 2^20 are exact, and the rest.
LN2 = 0.6931471803691238, 1.9082149288430703e-10, 4.275175589747649e-20
LOG2_E = 1.4426950408889634
LEAST = -690.0  # what is farther below the largest logit weighs less than 2^-995 a row: nothing
HALVINGS = 8
TERMS = 10


def _parts(number: Fraction) -> tuple[float, float]:
    high = float(number)
    return high, float(number - Fraction(high))


INVERSE_FACTORIALS = tuple(_parts(Fraction(1, factorial(n))) for n in range(TERMS, 0, -1))


@kernel("(int64, float32[:,::1], int64[::1], float64[::1], float64[:,::1], float64[:,::1])")
def double_double_log_z(address, hidden, best, tops, carried, log_z):
    """Fill log_z [B, 3]: top, and two float64 whose sum is log Z - top, to ERROR.

    For the sum of all e^x, of which tops [B] are the largest x, at the rows best [B] of W.
    `address` is that of W's descriptor; rows of hidden are admissible. W may be a shard, which need
    not hold `best`: `carried` [B, 2] is the sum over the shards before it, and then with its own.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    scratch = np.empty(padded(dim), np.float64)
    wide = pointer(scratch)
    for row in range(hidden.shape[0]):
        widen_hidden(descriptor, row_of(pointer(hidden), row, dim), wide)
        high, low, top = carried[row, 0], carried[row, 1], tops[row]
        for i in range(matrix.rows):
            logit = exact_logit(matrix, wide, i)
            if i != best[row] and logit - top > LEAST:
                apart = _two_sum(logit, -top)
                weight = _exponential(apart[0], apart[1])
                high, low = _add(high, low, weight[0], weight[1])
        carried[row, 0], carried[row, 1] = high, low
        log_z[row, 0] = top
        log_z[row, 1], log_z[row, 2] = _log1p(high, low)
    keep_alive(scratch)


@inline
def _two_sum(a, b):
    """a + b, and what it was rounded by."""
    total = a + b
    c = total - a
    return total, (a - (total - c)) + (b - c)


@inline
def _split(a):
    """a as two numbers of 26 bits."""
    c = 134217729.0 * a  # 2^27 + 1
    high = c - (c - a)
    return high, a - high


@inline
def _add(a_high, a_low, b_high, b_low):
    high, low = _two_sum(a_high, b_high)
    more, less = _two_sum(a_low, b_low)
    high, low = _two_sum(high, low + more)
    return _two_sum(high, low + less)


@inline
def _multiply(a_high, a_low, b_high, b_low):
    product = a_high * b_high
    (a, b), (c, e) = _split(a_high), _split(b_high)
    rounded = ((a * c - product) + a * e + b * c) + b * e
    return _two_sum(product, rounded + (a_high * b_low + a_low * b_high))


@inline
def _exponential(high, low):
    """e^x for LEAST <= x <= 0."""
    count = np.rint(high * LOG2_E)
    high, low = _add(high, low, -count * LN2[0], -count * LN2[1])
    high, low = _add(high, low, -count * LN2[2], 0.0)
    high, low = ldexp(high, -HALVINGS), ldexp(low, -HALVINGS)
    a, b = INVERSE_FACTORIALS[0]
    for term in INVERSE_FACTORIALS[1:]:
        a, b = _multiply(a, b, high, low)
        a, b = _add(a, b, term[0], term[1])
    a, b = _multiply(a, b, high, low)  # e^{x / 256} - 1
    for _ in range(HALVINGS):  # e^{2x} - 1 = (e^x - 1)^2 + 2 (e^x - 1)
        square = _multiply(a, b, a, b)
        a, b = _add(square[0], square[1], 2.0 * a, 2.0 * b)
    a, b = _add(1.0, 0.0, a, b)
    return ldexp(a, int(count)), ldexp(b, int(count))


@inline
def _log1p(high, low):
    """log(1 + x), by one step of Newton's from that of float64."""
    near = log1p(high)
    weight = _exponential(-near, 0.0)
    a, b = _add(1.0, 0.0, high, low)
    a, b = _multiply(a, b, weight[0], weight[1])
    a, b = _add(a, b, -1.0, 0.0)
    return _two_sum(near, (a - 0.5 * a * a) + b)
