"""Weights that are no less than e^{x / T}, and log Z from them: kernels/sampling/envelope.py.

The exponent of a weight is x inverse - top, for x a bound of a logit; all of it is float32 but
`inverse`, `top` and `lift`, which are rounded to it here. Weights of less than e^-88 say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import product

from logitsieve.kernels.sampling import envelope
from logitsieve.kernels.simd.exponential import ERROR32, LOWEST
from proofs.certified import float32_cuts
from proofs.exponential import exponential_below
from proofs.log_z import COMPUTED, LIBM, ROWS
from proofs.theorem import U32, U64, Checks, Theorem, growth, nearer_one, number

NATS = 88
# |top|, by quarters of binades: `lift` is LIFTED at most, beyond which all weights are exact.
TOPS = [
    (Fraction(0), Fraction(1)),
    *((Fraction(q << p, 4), Fraction(q + 1 << p, 4)) for p in range(21) for q in range(4, 8)),
]
# Of a lift: what one exponent of a bound, an estimate or a lower bound is off by.
SHARE = Fraction(5, 8)


def with_margin(share: float, spare: float) -> Checks:
    """A bound with its share of itself and the margin, in float32, is at least both."""
    margin = f"f(d(m * {number(spare)}))"
    for fused in (True, False):
        more = f"{number(share)} * a" if fused else f"f({number(share)} * a)"
        exact = f"w + {number(share)} * a + m * {number(spare)}"
        off = f"f(f(w + {more}) + {margin}) - ({exact})"
        yield from float32_cuts(off, share, Fraction(spare) - 1, "f")


def exponent(bound: str, fused: bool) -> str:
    """An exponent, bound inverse + v, in float32; v is -top, or lift - top."""
    product_ = f"{bound} * f(i)" if fused else f"f({bound} * f(i))"
    return f"f({product_} + f(v))"


def exponents(share: float, reach: float, part: Fraction) -> Iterator[str]:
    """An exponent is off by `part` of the lift, less what exp_lanes is off by."""
    for (low, high), fused in product(TOPS, (True, False)):
        allowed = part * Fraction(share) * (low + Fraction(reach)) - Fraction(ERROR32)
        most, off = number(high + NATS + 2), f"{exponent('x', fused)} - (x * i + v)"
        yield f"""x = f(x_);
        {{ i in [1b-20, 1b20] /\\ |x * i| <= {most} /\\ |v| <= {number(high + 2)}
        /\\ |x * i + v| <= {NATS} -> |{off}| <= {number(allowed)} }}"""


def lift(share: float, reach: float) -> Checks:
    """A weight is at least that of its bound."""
    yield from exponents(share, reach, Fraction(1))


def low_lifts(count: float) -> Checks:
    """A computed row leaves some of its lower bound, and one that was not has it rounded.

    The lower bound 2 x - u, x an estimate and u a bound, is rounded before it is weighed. Of a
    computed row e^{2 x - u - lift} is taken off, from its estimate's weight and its bound's: two
    exponents of one, one of the other.
    """
    share, reach = envelope.LIFT, envelope.REACH
    yield from exponents(share, reach, SHARE)
    for low, high in TOPS:
        size = high + NATS + 2
        allowed = (Fraction(1) - SHARE) * Fraction(share) * (low + Fraction(reach))
        yield f"""x = f(x_); u = f(u_); y = 2 * x - u;
        {{ |y * i| <= {number(size)} /\\ i in [1b-20, 1b20]
        -> |f(y) * i - y * i| <= {number(allowed)} }}"""
    yield Fraction(count) >= 1 + 2 * SHARE + SHARE + 1


def least(value: float) -> Checks:
    """More than exp_lanes makes of -inf."""
    most = 1 / exponential_below(-Fraction(float(LOWEST))) * (1 + Fraction(ERROR32))
    yield most <= Fraction(value)


def weight_sums(share: float) -> Checks:
    """Exact weights in float32, and sums that a computed row is added to and taken from."""
    for rows in ROWS:
        lost = U32 + growth(3 * rows + 64, U64) + LIBM + rows * Fraction(2) ** -150
        yield lost <= Fraction(share)


def logarithms(share: float) -> Checks:
    """An exact weight's exponent, a product and a difference; and the addition of the logarithm."""
    yield Fraction(share) >= 4 * U64 * (1 + COMPUTED)


ENVELOPE = "kernels.sampling.envelope"

THEOREMS = [
    Theorem(
        "weights, bound", "a bound with the margin in float32, in shares of the bound",
        f"{ENVELOPE}.BOUND_SPARE", envelope.BOUND_SPARE,
        partial(with_margin, spare=envelope.MARGIN_SPARE), 4,
    ),
    Theorem(
        "weights, margin", "a bound with the margin in float32, in shares of the margin",
        f"{ENVELOPE}.MARGIN_SPARE", envelope.MARGIN_SPARE,
        partial(with_margin, envelope.BOUND_SPARE), 16, nearer_one,
    ),
    Theorem(
        "weights, exponents", "exponents in float32, in shares of |top|",
        f"{ENVELOPE}.LIFT", envelope.LIFT, partial(lift, reach=envelope.REACH), 4,
    ),
    Theorem(
        "weights, reach", "the nats that exponents reach below the top",
        f"{ENVELOPE}.REACH", envelope.REACH, partial(lift, envelope.LIFT), 4,
    ),
    Theorem(
        "weights, lower bounds", "lifts that lower bounds and what is left of them take",
        f"{ENVELOPE}.LOW_LIFTS", envelope.LOW_LIFTS, low_lifts, 1.1,
    ),
    Theorem(
        "weights, underflow", "what no weight is below",
        f"{ENVELOPE}.LEAST", envelope.LEAST, least, 1.3,
    ),
    Theorem(
        "weights, sums", "sums of weights, of themselves",
        f"{ENVELOPE}.SUM_SPARE", envelope.SUM_SPARE, weight_sums, 512,
    ),
    Theorem(
        "weights, logarithm", "log Z beside the top, in shares of it",
        f"{ENVELOPE}.LOG_SPARE", envelope.LOG_SPARE, logarithms, 4,
    ),
]  # fmt: skip
