"""e^x of lanes, by reducing the range of x: kernels/simd/exponential.py.

With n the integer nearest to x / log 2, r = x - n log 2 and p a polynomial of r, e^x is about
p 2^n, where the product is exact. Gappa bounds the rounding of r and p; p also lacks the rest of
Taylor's series.
"""

from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil, factorial
from typing import Any, NamedTuple

from logitsieve.kernels.simd import exponential
from proofs.expression import Symbol, Traced, text_of, traced
from proofs.theorem import Checks, Theorem, number

with localcontext() as digits:
    digits.prec = 50
    LN2 = Decimal(2).ln()
LN2_OFF = Fraction(1, 10**45)
PIECES = 16  # of each half of the range of r


class ExpLanes(NamedTuple):
    rounding: str  # the operator of theorem.py
    whole: float  # added to round n to an integer; 0 if `rounded` does it
    log2_e: float
    high: float
    low: float
    series: tuple[float, ...]
    lowest: float
    highest: int  # the largest x
    function: Any

    def traced(self, fused: bool) -> Traced:
        named = ("steps", "n", "r") if self.whole else ("n", "r")
        return traced(self.function, Symbol("x", self.rounding), fused=fused, named=named)

    @property
    def unit(self) -> Fraction:
        return Fraction(1, 1 << (24 if self.rounding == "f" else 53))


FLOAT32 = ExpLanes(
    "f", 0, float(exponential.LOG2_E), float(exponential.LN2_HIGH),
    float(exponential.LN2_LOW), tuple(map(float, exponential.SERIES)), float(exponential.LOWEST),
    1, exponential.exp_lanes,
)  # fmt: skip
FLOAT64 = ExpLanes(
    "d", exponential.WHOLE,
    exponential.LOG2_E64, exponential.LN2_HIGH64, exponential.LN2_LOW64,
    exponential.SERIES64, exponential.LOWEST64, 0,
    exponential.exp64_lanes,
)  # fmt: skip


def rounded_up(value: Fraction) -> Fraction:
    """Round up to a multiple of 2^-100, for Gappa."""
    return Fraction(ceil(value * (1 << 100)), 1 << 100)


def steps_off(lanes: ExpLanes) -> Fraction:
    """Bound the distance of n from x / log 2 by a half and the rounding of the product."""
    return Fraction(1, 2) + abs(Fraction(lanes.lowest)) * 2 * lanes.unit


def largest_remainder(lanes: ExpLanes) -> Fraction:
    product = abs(1 - Fraction(lanes.log2_e) * Fraction(LN2)) + LN2_OFF
    off = steps_off(lanes) * (Fraction(LN2) + LN2_OFF)
    return rounded_up(off + abs(Fraction(lanes.lowest)) * product)


def whole_numbers(lanes: ExpLanes) -> Iterator[str]:
    """n is within `steps_off`; in float64 the sum with `whole` holds it."""
    rounding, log2_e = lanes.rounding, number(lanes.log2_e)
    for fused in (True, False):
        names = lanes.traced(fused).locals
        product = f"x * {log2_e}" if fused else f"{rounding}(x * {log2_e})"
        steps = f"steps = {names['steps']};" if lanes.whole else ""
        hint = f"""n - x * {log2_e} -> (n - (steps - {number(lanes.whole)}))
        + (steps - ({number(lanes.whole)} + {product})) + ({product} - x * {log2_e});"""
        yield f"""x = {rounding}(x_); {steps} n = {names["n"]};
        {{ x in [{number(lanes.lowest)}, {lanes.highest}]
        -> |n - x * {log2_e}| <= {number(steps_off(lanes))} }}
        {hint if lanes.whole else ""}"""


def reduced(lanes: ExpLanes, off: Fraction) -> Iterator[str]:
    """Bound the error of r for nonzero n; the first product and its difference from x are exact."""
    rounding, high, low = lanes.rounding, text_of(-lanes.high), text_of(-lanes.low)
    exact = f"x - n * {LN2}"
    below = f"n in [{number(lanes.lowest * 2)}, -1] /\\ x in [{number(lanes.lowest)}, -1b-2]"
    above = f"n in [1, {2 * lanes.highest}] /\\ x in [1b-2, {lanes.highest}]"
    for fused, where in product((True, False), (below, above)[: 1 + lanes.highest]):
        yield f"""x = {rounding}(x_); r = {lanes.traced(fused).locals["r"]};
        {{ @FIX(n, 0) /\\ {where} /\\ |{exact}| <= {number(largest_remainder(lanes))}
        -> |r - ({exact})| <= {number(off)} /\\ {rounding}(n * {high}) - n * {high} in [0, 0] }}
        x + n * {high} -> ({exact}) + n * ({LN2} + {high});
        r - ({exact}) -> (r - ((x + n * {high}) + n * {low})) + n * ({LN2} + {high} + {low});"""


def polynomial(lanes: ExpLanes, off: Fraction) -> Iterator[str]:
    """Bound the error of p relative to e^r, for r in pieces of its range."""
    degree = len(lanes.series) - 1
    edge = largest_remainder(lanes) + Fraction(1, 1 << 20)
    for piece in range(-PIECES, PIECES):
        low, high = (rounded_up(edge * place / PIECES) for place in (piece, piece + 1))
        for fused in (True, False):
            exact = f"1 / {factorial(degree)}"
            for place in range(1, degree + 1):
                exact = f"1 / {factorial(degree - place)} + ({exact}) * r"
            computed = lanes.traced(fused).returned
            allowed = number(rounded_up(off * exponential_below(low)))
            yield f"""r = {lanes.rounding}(r_);
            {{ r in [{number(low)}, {number(high)}] -> |{computed} - ({exact})| <= {allowed} }}"""


def exponential_below(x: Fraction) -> Fraction:
    with localcontext() as digits:
        digits.prec = 40
        power = (Decimal(x.numerator) / Decimal(x.denominator)).exp()
    return Fraction(power) * (1 - Fraction(1, 10**30))


def left_of_series(lanes: ExpLanes) -> Fraction:
    most = largest_remainder(lanes) + Fraction(1, 1 << 20)
    count = len(lanes.series)
    rest = most**count / factorial(count) / (1 - most / (count + 1))
    return rest / exponential_below(-most)


def exponentials(lanes: ExpLanes, error: float) -> Checks:
    """Bound the error of e^x by those of r (`shifted`), of p, and the rest of the series."""
    shifted = Fraction(9, 8) * lanes.unit / 4 + abs(Fraction(lanes.lowest)) * 2 * lanes.unit**2
    yield from whole_numbers(lanes)
    yield from reduced(lanes, rounded_up(shifted))
    rest = (1 + Fraction(error)) / (1 + left_of_series(lanes)) / (1 + shifted * (1 + shifted)) - 1
    yield rest > 0
    yield from polynomial(lanes, rest)


EXPONENTIAL = "kernels.simd.exponential"

THEOREMS = [
    Theorem("exponentials in float32", f"{EXPONENTIAL}.ERROR32", partial(exponentials, FLOAT32), 2),
    Theorem("exponentials in float64", f"{EXPONENTIAL}.ERROR64", partial(exponentials, FLOAT64), 8),
]
