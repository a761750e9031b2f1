"""Routing by int8 (kernels/screen/route.py): approximations S s g of all dots, and their slack.

S = q.z is an integer. Rounding of S s g to float32, and of `dot64`, is bounded by shares of

    reach = (n + e) (||h|| + ||t||) >= ||s q|| ||g z||.

Above LARGEST_LOGIT there is no approximation. Below it, only s g may overflow, with S = 0: NaN
rules no centroid out.
"""

from collections.abc import Iterator
from fractions import Fraction
from operator import mul

import numpy as np

from logitsieve.kernels.screen import route
from logitsieve.kernels.simd.planes import LARGEST, SMALLEST
from proofs.expression import Symbol, assigned
from proofs.scan import SPARED
from proofs.sketch import lane_steps
from proofs.theorem import DIMS, MOST32, U32, U64, Checks, Theorem, growth, nearer_one, number

LARGEST_CODE = 127
ROUTED = [dim for dim in DIMS if dim <= route.LARGEST_DIM]
THRICE = (1 + U32) ** 3 - 1
APPROXIMATION = "f(f(S) * f(s * g))"


def lost(dim: int) -> Fraction:
    """Return the share that a slack lacks by rounding of t, of two norms, and of ten steps."""
    return growth(lane_steps(dim) + 16, U64)


def stored_error(spare: float) -> Checks:
    """s q is exact; a difference, squares, sums, the root (squared here) and a product round."""
    yield """s = f(s_);
    { @FIX(q, 0) /\\ |q| <= 127 /\\ |s * q| <= 1b127 -> d(s * q) - s * q in [0, 0] }"""
    for dim in ROUTED:
        yield (1 - growth(dim + 3, U64)) * (Fraction(spare) * (1 - 4 * U64)) ** 2 >= 1


def slack(spare: float) -> Checks:
    """||r|| ||h|| and ||s q|| ||t|| are rounded to float64."""
    for dim in ROUTED:
        yield Fraction(spare) * (1 - lost(dim)) * (1 - SPARED) >= 1


def scaled_sums() -> Iterator[str]:
    """Bound the relative error of an approximation with s g of at least 2^-125."""
    yield f"""s = f(s_); g = f(g_);
    {{ @FIX(S, 0) /\\ |S| in [1, 1b31] /\\ s * g in [1b-125, 1b126] /\\ |S * (s * g)| <= 1b127
    -> {APPROXIMATION} -/ (S * (s * g)) in [{number(-THRICE)}, {number(THRICE)}] }}"""


def margin(share: float) -> Checks:
    """Bound the errors of an approximation and of `dot64`, relative to `reach`."""
    yield from scaled_sums()
    for dim in ROUTED:
        allowed = Fraction(share) * (1 - lost(dim)) * (1 - SPARED)
        yield THRICE + growth(lane_steps(dim) + 1, U64) <= allowed


def underflow(each: float) -> Checks:
    """Bound the error of an approximation with smaller s g, for D from 2^(p-1) to 2^p."""
    for p in range(route.LARGEST_DIM.bit_length()):
        most, least_dim = LARGEST_CODE**2 << p, max(1, 1 << p >> 1)
        yield f"""s = f(s_); g = f(g_);
        {{ @FIX(S, 0) /\\ |S| <= {most} /\\ s * g in [0, 1b-125]
        -> |{APPROXIMATION} - S * (s * g)| <= {number(each * least_dim * (1 - 2 * SPARED))} }}"""


def finite(largest: float) -> Checks:
    """Approximations are bounded by `reach`, up to their own rounding."""
    for dim in ROUTED:
        most = Fraction(largest) * (1 + growth(lane_steps(dim) + 16, U64)) * (1 + THRICE)
        yield most + 1 <= Fraction(MOST32)


def whole_sums(dim: float) -> Checks:
    """Sums of bytes times codes fit 31 bits; the sum of the codes is exact in float32."""
    yield 255 * LARGEST_CODE * int(dim) < 1 << 31
    yield LARGEST_CODE * int(dim) <= 1 << 24


def codes(no_larger: float) -> Checks:
    """No code of a query exceeds 127: x factor rounds to no larger integer."""
    less = number(float(np.float32(no_larger)))
    factor = assigned(route.encode_row, "factor", most=Symbol("m", "f"), NO_LARGER=no_larger)
    code = assigned(route.encode_row, "z", x=Symbol("x", "f"), factor=Symbol("factor", "f"))
    yield f"""m = f(m_); x = f(x_); factor = {factor};
    {{ m in [{number(SMALLEST)}, {number(LARGEST)}] /\\ x / m in [-1, 1]
    -> |{code}| <= {LARGEST_CODE} }}
    x * factor -> x / m * (m * factor) {{ m <> 0 }};
    m * factor -> {less} * (1 + (factor - {less} / m) / ({less} / m)) {{ m <> 0 }};"""


ROUTE = "kernels.screen.route"

THEOREMS = [
    Theorem("routes, sums of codes", f"{ROUTE}.LARGEST_DIM", whole_sums, 1.02, mul),
    Theorem("routes, codes", f"{ROUTE}.NO_LARGER", codes, 1.04, mul),
    Theorem("routes, coding errors", f"{ROUTE}.ERROR_SPARE", stored_error, 512, nearer_one),
    Theorem("routes, slack", f"{ROUTE}.SLACK_SPARE", slack, 3e6, nearer_one),
    Theorem("routes, approximations", f"{ROUTE}.ROUTE_ROUNDING", margin, 6),
    Theorem("routes, underflow", f"{ROUTE}.ROUTE_UNDERFLOW", underflow, 4),
    Theorem("routes, overflow", "kernels.topk.descriptor.LARGEST_LOGIT", finite, 4, mul),
]
