"""Sums of exponentials within intervals, decisions by them, and draws by Gumbel's trick.

kernels/intervals: the exponent of a row is y inverse - top, for y its estimate or a bound of its
logit, in float32. `LEAST` is taken off for exponentials below e^-87.

kernels/sampling/gumbel.py passes ids over. An id wins a draw if its scaled logit s and its noise G
= -log E, E = l or l + e, reach M as computed, with l a sixteenth of its block's -log u and e its
own; and -log u >= 1 - u. The largest s is 0, with noise of at least -3.7, and G <= 39.6, as u is
from 2^-53 to 1 - 2^-53. So s >= -44, and neither e^s nor e^-M underflows in float32. The 1 - u of
the tests is truncated to a multiple of 2^-31, then rounded.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

from logitsieve.kernels.intervals import intervals, sums
from logitsieve.kernels.intervals.intervals import BOUND_SPARE, MARGIN_SPARE
from logitsieve.kernels.sampling.gumbel import SPARE
from logitsieve.kernels.simd.exponential import ERROR32, ERROR64, LOWEST
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.encode_query import MARGIN
from logitsieve.kernels.sketch.sketch import UNIT64
from proofs.certified import CUT, float32_cuts
from proofs.exponential import exponential_below
from proofs.expression import Symbol, traced
from proofs.log_z import COMPUTED, DEEPEST, LIBM, ROWS
from proofs.theorem import U32, U64, Checks, Theorem, growth, nearer_one, number

DRAWN_NATS = 40  # above |G|, and above |s + G| of an id that wins


def passed_over(spare: float) -> Checks:
    """A logarithm and sums, for l + e and e^{s - M}; in float32 1 - u, and its upper bound.

    That is w e^-M - r, rounded twice, with r a sixteenth of the block's 1 - u. Both sides are
    linear in r, which is at most l: 0 or all of l + e.
    """
    off = (LIBM + U64) * DRAWN_NATS * (1 + U64)
    exponential = 1 / ((1 - off) * (1 - U64))
    rest = (1 + U32) / (1 - LIBM)
    weight, noise = (1 - Fraction(ERROR64)) * (1 - U32), (1 - LIBM) * (1 - U64) * (1 - U32)
    limit = Fraction(spare) * weight * noise * (1 - U32)
    for least in (Fraction(0), exponential):
        rounded = least / (1 - LIBM) * (1 + U32)
        yield rest * (exponential - least) <= (limit - rounded) * (1 - U32)


NATS = 88
# |top|, by quarters of binades: `lift` is LIFTED at most.
TOPS = [
    (Fraction(0), Fraction(1)),
    *((Fraction(q << p, 4), Fraction(q + 1 << p, 4)) for p in range(21) for q in range(4, 8)),
]
# Of a lift: the error of one exponent. Joint bounds have two or three lifts.
SHARE = Fraction(5, 8)


def with_margin(share: float, spare: float) -> Checks:
    """A bound with its share of itself and the margin, in float32, is at least both."""
    of_bound, of_margin = number(share), number(spare)
    each: dict[str, Any] = {"MARGIN_SPARE": spare, "BOUND_SPARE": share}
    query = SimpleNamespace(coded=SimpleNamespace(factors={MARGIN: CUT[1]}))
    margin = traced(intervals.margin_of, query, **each).returned
    for fused in (True, False):
        bound = traced(
            intervals.raised, Symbol("w", "f", "a"), margin, fused=fused, BOUND_SPARE=share
        ).returned
        off = f"{bound} - (w + a * {of_bound} + m * {of_margin})"
        yield from float32_cuts(off, share, Fraction(spare) - 1, "f")


def lift(share: float, flat: float) -> Checks:
    """Exponents are off by SHARE of the lift; a lower bound is rounded, too, before it is weighed.

    The rest of a lift is more than the spare of a weight that noise is compared with.
    """
    yield 3 * SHARE <= 2
    yield (1 - SHARE) * Fraction(share) * Fraction(flat) >= Fraction(SPARE) - 1 + Fraction(ERROR32)
    lower = traced(sums._lower, Symbol("x", "f"), Symbol("u", "f")).returned
    for low, high in TOPS:
        size = high + NATS + 2
        allowance = Fraction(share) * (low + Fraction(flat))
        yield from exponents(high, SHARE * allowance - 2 * Fraction(ERROR32))
        yield f"""x = f(x_); u = f(u_); y = x * 2b0 - u;
        {{ |y * i| <= {number(size)} /\\ i in [1b-20, 1b20]
        -> |{lower} * i - y * i| <= {number((1 - SHARE) * allowance)} }}"""


def exponents(high: Fraction, allowed: Fraction) -> Iterator[str]:
    """Exponents x inverse - top in float32; a lift does not change their rounding."""
    scale = sums.Scale(Symbol("i", "d"), Symbol("t", "d"), Symbol("l", "d"))
    rows = SimpleNamespace(estimates={0: Symbol("x", "f")}, uppers={0: Symbol("x", "f")})
    for fused in (True, False):
        exponent = traced(sums.exponentials_at, rows, scale, 0, fused=fused).returned[0]
        yield f"""x = f(x_); t = d(t_);
        {{ i in [1b-20, 1b20] /\\ |x * i| <= {number(high + NATS + 2)}
        /\\ |t| <= {number(high + 2)} /\\ |(-(t)) + x * i| <= {NATS}
        -> |{exponent} - ((-(t)) + x * i)| <= {number(allowed)} }}"""


def least(value: float) -> Checks:
    """More than exp_lanes makes of -inf."""
    yield 1 / exponential_below(-Fraction(float(LOWEST))) * (1 + Fraction(ERROR32)) <= value


def sums_of_bounds(share: float) -> Checks:
    """Sums of float32 exponentials, with their error in the lift; roots and exp of a spread."""
    for rows in ROWS:
        lost = growth(rows // LANES + 32, U64) + 4 * LIBM
        yield 2 * lost + Fraction(share) ** 2 <= Fraction(share)


def known_sums(share: float) -> Checks:
    """Exponents of known logits, rounded twice, and exp; each addition takes UNIT64."""
    yield growth(1, 2 * U64 * DEEPEST) + LIBM + COMPUTED * U64 <= Fraction(share)
    for rows in ROWS:
        yield growth(rows, U64) <= rows * Fraction(UNIT64)


def logarithms(share: float) -> Checks:
    """`top` is a product; a logarithm, its addition, and both errors' addition."""
    yield Fraction(share) >= (3 * U64 + LIBM) * (1 + COMPUTED)


def limits(share: float) -> Checks:
    """A logit's limits in float32, the upper one also after rounding to float32."""
    below, _ = traced(sums.limits_of, CUT[0], SPARE=share).returned
    for limit in (below, f"f({below})"):  # the other one is the limit of -w
        yield from float32_cuts(f"{limit} - (w - {number(share)} * a)", share - float(U32) * 1.01)


def close(share: float) -> Checks:
    """Exponentials and sums over all rows, in lanes or one after another, and here."""
    each = growth(1, 2 * U64 * DEEPEST) + Fraction(ERROR64) + LIBM + 16 * U64
    yield 2 * each <= Fraction(share)
    for rows in ROWS:  # the sum before a row, and top-p of all
        yield 2 * (growth(rows + 32, U64) + each) <= rows * Fraction(UNIT64) + Fraction(share)


def edge(share: float) -> Checks:
    """A logarithm, a product, a sum, a quotient; a scaled logit of `exact`, its exponential."""
    yield Fraction(share) >= (LIBM + 6 * U64) * (1 + COMPUTED)
    yield Fraction(share) >= Fraction(ERROR64) + 4 * U64


KERNELS, INTERVALS = "kernels.intervals", "kernels.intervals.intervals"

THEOREMS = [
    Theorem(
        "intervals, bound", f"{INTERVALS}.BOUND_SPARE", partial(with_margin, spare=MARGIN_SPARE), 4
    ),
    Theorem(
        "intervals, margin",
        f"{INTERVALS}.MARGIN_SPARE",
        partial(with_margin, BOUND_SPARE),
        16,
        nearer_one,
    ),
    Theorem("intervals, exponents", f"{KERNELS}.sums.LIFT", partial(lift, flat=sums.REACH), 4),
    Theorem("intervals, reach", f"{KERNELS}.sums.REACH", partial(lift, sums.LIFT), 4),
    Theorem("intervals, underflow", f"{KERNELS}.sums.LEAST", least, 1.3),
    Theorem("intervals, sums", f"{KERNELS}.sums.SUM_SPARE", sums_of_bounds, 1e5),
    Theorem("intervals, known logits", f"{KERNELS}.sums.KNOWN_SPARE", known_sums, 8),
    Theorem("intervals, logarithm", f"{KERNELS}.sums.LOG_SPARE", logarithms, 2),
    Theorem("intervals, limits", "kernels.sketch.thresholds.SPARE", limits, 4),
    Theorem("intervals, nucleus", f"{KERNELS}.filters.CLOSE", close, 8),
    Theorem("intervals, min-p", f"{KERNELS}.filters.EDGE", edge, 4),
    Theorem("draws, passed over", "kernels.sampling.gumbel.SPARE", passed_over, 5, nearer_one),
]
