"""log Z in double-double arithmetic, step by step: kernels/sampling/double_double.py.

A number x is two float64, the second at most U64 of the first. What README.md says of sums and
products of two float64 is used: the two numbers that each becomes add up to it exactly.
Errors are counted in fractions, in shares of what is added or multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import ceil, factorial

from logitsieve.kernels.sampling import double_double
from logitsieve.kernels.sampling.double_double import HALVINGS, INVERSE_FACTORIALS, LOG2_E
from logitsieve.kernels.sampling.double_double import LN2 as PARTS
from proofs.exponential import LN2, LN2_OFF, exponential_below
from proofs.log_z import LIBM
from proofs.theorem import U64, Checks, Theorem, growth, number

LN2_HIGH, LN2_LOW, LN2_REST = map(Fraction, PARTS)
ROWS = 1 << 26
MOST_COUNT = 996  # of ln 2: 690 nats
EXACT_LN2 = Fraction(LN2)
PARTS_OFF = Fraction(1, 1 << 119)  # what the parts of ln 2 lack
REACH = EXACT_LN2 / 2 + Fraction(1, 1 << 40)  # of an exponent when multiples of ln 2 are taken off
FIRST = 1 / (1 - U64)  # of a number: its first part


def up(value: Fraction) -> Fraction:
    """A little more, of few digits: fractions of steps would have thousands."""
    return Fraction(ceil(value * (1 << 400)), 1 << 400)


def added() -> Fraction:
    """The error of `_add`, of |x| + |y|.

    With s + e = x1 + y1 and t + f = x2 + y2, e + t is rounded, and f + what s + e + t leaves.
    """
    e, t = U64 * FIRST, U64 * FIRST * (1 + U64)
    c = (e + t) * (1 + U64)
    v = U64 * ((1 + U64) * FIRST + c)
    return U64 * (e + t) + U64 * (U64 * t + v)


def multiplied() -> Fraction:
    """The error of `_multiply`, of |x y|.

    The product of second parts is left out. Those of a second part are rounded, and their sum, and
    its sum with what the first product lacks.
    """
    each = U64 * FIRST * FIRST
    both = 2 * each * (1 + U64)
    return U64 * each + 2 * U64 * each + U64 * both + U64 * (U64 * FIRST**2 + both * (1 + U64))


ADD, MULTIPLY = up(added()), up(multiplied())


def whole_multiples() -> Iterator[str]:
    """n, the products with two parts of ln 2 and the first difference are exact.

    So of x - n ln 2 the first sum of second parts is not rounded either, as nothing is added to it.
    """
    off = Fraction(1, 2) + MOST_COUNT * 4 * U64
    yield f"""x = d(x_); L = {number(LOG2_E)}; n = int<ne>(d(x * L));
    {{ x in [-690, 0] -> |n - x * L| <= {number(off)} }}"""
    for part in (LN2_HIGH, LN2_LOW):
        yield f"""{{ @FIX(n, 0) /\\ n in [-1b20, 0]
        -> d(n * {number(part)}) - n * {number(part)} in [0, 0] }}"""
    high = number(LN2_HIGH)
    yield f"""x = d(x_);
    {{ @FIX(n, 0) /\\ n in [-{MOST_COUNT}, -1] /\\ x in [-690, -1b-2]
    /\\ x - n * {high} in [-0.4, 0.4] -> d(x - n * {high}) - (x - n * {high}) in [0, 0] }}"""


def reduced() -> Fraction:
    """The error of x - n ln 2: the last sum of the first step, the second step, ln 2 itself."""
    low = 690 * U64 + MOST_COUNT * LN2_LOW  # second parts, and what rounding their sum leaves
    first = U64 * (U64 * low + U64 * (REACH + low))
    second = ADD * (REACH + MOST_COUNT * LN2_REST) + U64 * MOST_COUNT * LN2_REST
    return first + second + MOST_COUNT * PARTS_OFF


def series(reach: Fraction, terms: int) -> Fraction:
    """The error of e^y - 1, |y| <= reach: Horner's rule, and the terms that are left out."""
    inverse = [Fraction(1, factorial(n)) for n in range(terms, 0, -1)]
    most, off = inverse[0], U64 * U64 * inverse[0]
    for term in inverse[1:]:
        product = (most + off) * reach
        off = off * reach + MULTIPLY * product + U64 * U64 * term
        off += ADD * (product * (1 + MULTIPLY) + term * (1 + U64 * U64))
        most, off = up(most * reach + term), up(off)
    off = off * reach + MULTIPLY * (most + off) * reach
    return off + reach ** (terms + 1) / factorial(terms + 1) / (1 - reach)


def exponential(terms: int) -> Fraction:
    """The error of e^x, of itself: doublings of e^y - 1, y = x / 256, and 1 that is added."""
    reach = REACH / (1 << HALVINGS)
    most, off = up(1 / exponential_below(-reach) - 1), up(series(reach, terms))
    for _ in range(HALVINGS):
        near = most + off
        off = off * (2 * most + off + 2) + MULTIPLY * near**2
        off += ADD * (near**2 * (1 + MULTIPLY) + 2 * near)
        most, off = up(most * (most + 2)), up(off)
    off += ADD * (1 + most + off)
    relative, shift = off / exponential_below(-REACH), growth(1, reduced())
    return up(relative + shift + relative * shift)


def newton(terms: int) -> Fraction:
    """The error of log(1 + S): a step from `near`, log1p of the first part of S.

    t = log(1 + S) - near is small, and a = e^t - 1 is what (1 + S) e^-near is beside 1.
    """
    apart = LIBM * (EXACT_LN2 * 26 + 1) + U64 * FIRST
    a = apart * (1 + apart)
    product = (1 + exponential(terms)) * (1 + ADD) * (1 + MULTIPLY) - 1
    off = product * (1 + a) + ADD * (2 + a + 2 * product)
    near = a + off
    left = near**3 + U64 * near**2 + U64 * near**2 / 2
    rounded = U64 * (near + near**2) + U64 * (near + near**2) * (1 + 2 * U64)
    return up(off * (1 + 2 * near) + left + rounded)


def error(most: float, terms: float, least: float) -> Checks:
    """Rows that count as nothing, weights, their sum, and its logarithm."""
    yield from whole_multiples()
    yield abs(sum(map(Fraction, PARTS)) - EXACT_LN2) + LN2_OFF <= PARTS_OFF
    yield abs(1 - Fraction(LOG2_E) * EXACT_LN2) * 690 + MOST_COUNT * 4 * U64 <= Fraction(1, 1 << 40)
    for n, parts in zip(range(len(INVERSE_FACTORIALS), 0, -1), INVERSE_FACTORIALS, strict=True):
        yield abs(sum(map(Fraction, parts), Fraction(0)) * factorial(n) - 1) <= Fraction(U64 * U64)
    weights, sums = exponential(int(terms)), up(growth(ROWS, ADD * FIRST * (1 + U64)))
    lost = up(ROWS * (1 / exponential_below(-Fraction(least)) + Fraction(2) ** -1000))
    total = weights + sums + weights * sums + lost + newton(int(terms))
    yield total * (1 + total) <= Fraction(most)


PLACE = "kernels.sampling.double_double"
ERROR, TERMS, LEAST = double_double.ERROR, double_double.TERMS, double_double.LEAST

THEOREMS = [
    Theorem(
        "log Z in double-double", "log Z less the largest logit, in nats",
        f"{PLACE}.ERROR", ERROR, partial(error, terms=TERMS, least=LEAST), 8,
    ),
    Theorem(
        "double-double, terms", "of Taylor's series",
        f"{PLACE}.TERMS", TERMS, partial(error, ERROR, least=LEAST), 2,
    ),
    Theorem(
        "double-double, underflow", "the nats from which on a row counts as nothing",
        f"{PLACE}.LEAST", LEAST, lambda least: error(ERROR, TERMS, least), 16,
    ),
]  # fmt: skip
