"""Sums of exponentials within intervals, and what they decide: kernels/intervals.

The exponent of a row is y inverse - top, for y its estimate or a bound of its logit; all of it is
float32 but `inverse`, `top` and `lift`, which are rounded to it here. Exponentials below e^-87 say
nothing, and `LEAST` is taken off for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from logitsieve.kernels.intervals import intervals, nucleus, sums
from logitsieve.kernels.sampling.gumbel import SPARE
from logitsieve.kernels.simd.exponential import ERROR32, ERROR64, LOWEST
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import UNIT64
from logitsieve.kernels.sketch.thresholds import SPARE as LIMIT_SPARE
from proofs.certified import float32_cuts
from proofs.exponential import exponential_below
from proofs.log_z import COMPUTED, DEEPEST, LIBM, ROWS
from proofs.theorem import U32, U64, Checks, Theorem, growth, nearer_one, number

NATS = 88
# |top|, by quarters of binades: `lift` is LIFTED at most.
TOPS = [
    (Fraction(0), Fraction(1)),
    *((Fraction(q << p, 4), Fraction(q + 1 << p, 4)) for p in range(21) for q in range(4, 8)),
]
# Of a lift: what one exponent is off by. Joint bounds have three, and two lifts for them: those of
# an estimate, as it is weighed and as it is told from the logit, and that of the largest bound.
SHARE = Fraction(5, 8)


def with_margin(share: float, spare: float) -> Checks:
    """A bound with its share of itself and the margin, in float32, is at least both."""
    margin = f"f(d(m * {number(spare)}))"
    for fused in (True, False):
        more = f"{number(share)} * a" if fused else f"f({number(share)} * a)"
        exact = f"w + {number(share)} * a + m * {number(spare)}"
        off = f"f(f(w + {more}) + {margin}) - ({exact})"
        yield from float32_cuts(off, share, Fraction(spare) - 1, "f")


def lift(share: float, reach: float) -> Checks:
    """Exponents are off by SHARE of the lift; a lower bound is rounded, too, before it is weighed.

    What remains of a lift is more than the spare of a weight that noise is compared with.
    """
    yield 3 * SHARE <= 2
    yield (1 - SHARE) * Fraction(share) * Fraction(reach) >= Fraction(SPARE) - 1 + Fraction(ERROR32)
    for low, high in TOPS:
        size = high + NATS + 2
        whole = Fraction(share) * (low + Fraction(reach))
        yield from exponents(high, SHARE * whole - 2 * Fraction(ERROR32))
        yield f"""x = f(x_); u = f(u_); y = 2 * x - u;
        {{ |y * i| <= {number(size)} /\\ i in [1b-20, 1b20]
        -> |f(y) * i - y * i| <= {number((1 - SHARE) * whole)} }}"""


def exponents(high: Fraction, allowed: Fraction) -> Iterator[str]:
    """Exponents y inverse + v in float32; v is -top, with the lift or without."""
    for fused in (True, False):
        times = "x * f(i)" if fused else "f(x * f(i))"
        yield f"""x = f(x_);
        {{ i in [1b-20, 1b20] /\\ |x * i| <= {number(high + NATS + 2)}
        /\\ |v| <= {number(high + 2)} /\\ |x * i + v| <= {NATS}
        -> |f({times} + f(v)) - (x * i + v)| <= {number(allowed)} }}"""


def least(value: float) -> Checks:
    """More than exp_lanes makes of -inf."""
    yield 1 / exponential_below(-Fraction(float(LOWEST))) * (1 + Fraction(ERROR32)) <= value


def sums_of_bounds(share: float) -> Checks:
    """Sums of float32 exponentials, whose error is part of the lift; roots and exp of a spread."""
    for rows in ROWS:
        lost = growth(rows // LANES + 32, U64) + 4 * LIBM
        yield 2 * lost + Fraction(share) ** 2 <= Fraction(share)


def known_sums(share: float) -> Checks:
    """Exponents of known logits, rounded twice, and exp; each addition takes UNIT64."""
    yield growth(1, 2 * U64 * DEEPEST) + LIBM + COMPUTED * U64 <= Fraction(share)
    for rows in ROWS:
        yield growth(rows, U64) <= rows * Fraction(UNIT64)


def logarithms(share: float) -> Checks:
    """`top` is a product; a logarithm, its addition, and that of what both are off by."""
    yield Fraction(share) >= (3 * U64 + LIBM) * (1 + COMPUTED)


def limits(share: float) -> Checks:
    """A logit's limits in float32, the upper one of what was rounded to float32, too."""
    exact = f"w + {number(share)} * a"
    for off in (f"f(d(w + {number(share)} * a))", f"f(f(d(w + {number(share)} * a)))"):
        yield from float32_cuts(f"{off} - ({exact})", share - float(U32) * 1.01)


def close(share: float) -> Checks:
    """Exponentials and sums over all rows, in lanes or one after another, and here."""
    each = growth(1, 2 * U64 * DEEPEST) + Fraction(ERROR64) + LIBM + 16 * U64
    yield 2 * each <= Fraction(share)
    for rows in ROWS:  # the sum before a row, and top-p of all
        yield 2 * (growth(rows + 32, U64) + each) <= rows * Fraction(UNIT64) + Fraction(share)


def edge(share: float) -> Checks:
    """A logarithm, a quotient, a sum; a scaled logit as `exact` rounds it, and its exponential."""
    yield Fraction(share) >= (LIBM + 6 * U64) * (1 + COMPUTED)
    yield Fraction(share) >= Fraction(ERROR64) + 4 * U64


KERNELS = "kernels.intervals"

THEOREMS = [
    Theorem(
        "intervals, bound", "a bound with the margin in float32, in shares of the bound",
        f"{KERNELS}.intervals.BOUND_SPARE", intervals.BOUND_SPARE,
        partial(with_margin, spare=intervals.MARGIN_SPARE), 4,
    ),
    Theorem(
        "intervals, margin", "a bound with the margin in float32, in shares of the margin",
        f"{KERNELS}.intervals.MARGIN_SPARE", intervals.MARGIN_SPARE,
        partial(with_margin, intervals.BOUND_SPARE), 16, nearer_one,
    ),
    Theorem(
        "intervals, exponents", "exponents in float32, in shares of |top|",
        f"{KERNELS}.sums.LIFT", sums.LIFT, partial(lift, reach=sums.REACH), 4,
    ),
    Theorem(
        "intervals, reach", "the nats that exponents reach below the top",
        f"{KERNELS}.sums.REACH", sums.REACH, partial(lift, sums.LIFT), 4,
    ),
    Theorem(
        "intervals, underflow", "what no exponential is below",
        f"{KERNELS}.sums.LEAST", sums.LEAST, least, 1.3,
    ),
    Theorem(
        "intervals, sums", "sums of exponentials of bounds, of themselves",
        f"{KERNELS}.sums.SUM_SPARE", sums.SUM_SPARE, sums_of_bounds, 1e5,
    ),
    Theorem(
        "intervals, known logits", "their exponentials, beside additions",
        f"{KERNELS}.sums.KNOWN_SPARE", sums.KNOWN_SPARE, known_sums, 8,
    ),
    Theorem(
        "intervals, logarithm", "log Z beside the top, in shares of both",
        f"{KERNELS}.sums.LOG_SPARE", sums.LOG_SPARE, logarithms, 2,
    ),
    Theorem(
        "intervals, limits", "what is above or below a logit, in float32",
        "kernels.sketch.thresholds.SPARE", LIMIT_SPARE, limits, 4,
    ),
    Theorem(
        "intervals, nucleus", "shares of mass in float64, beside additions",
        f"{KERNELS}.nucleus.CLOSE", nucleus.CLOSE, close, 8,
    ),
    Theorem(
        "intervals, min-p", "the logit that is min-p of the largest",
        f"{KERNELS}.nucleus.EDGE", nucleus.EDGE, edge, 4,
    ),
]  # fmt: skip
