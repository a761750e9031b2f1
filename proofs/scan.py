"""Errors of float32 logits, and thresholds from float32 and from exact logits: kernels/topk."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import inf
from operator import mul
from typing import Any

from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.topk import scan
from logitsieve.kernels.topk.descriptor import DOT64_SPARE, GAMMA_SPARE, NORM_SPARE
from logitsieve.kernels.topk.queries import SLACK
from proofs.expression import Symbol, assigned
from proofs.sketch import lane_steps
from proofs.theorem import (
    DIMS,
    LARGEST_DIM,
    MOST32,
    U32,
    U64,
    Checks,
    Theorem,
    growth,
    nearer_one,
    number,
)

VALUE = 2  # roundings of a number of w: of code times scale, and of the sum with low
# The share of a slack that its theorems leave for computing a threshold.
SPARED = Fraction(1, 1 << 49)


def largest_norm(spare: float) -> Checks:
    """Squares are exact; their sum, its root and the product with `spare` round."""
    for dim in DIMS:
        yield growth(lane_steps(dim), U64) / 2 + 3 * U64 <= Fraction(spare) - 1


def slack(spare: float, dot64: float) -> Checks:
    """Bound errors of a float32 dot in any order and of dot64, relative to ||w|| ||h||."""
    for dim in DIMS:
        gamma = growth(dim)
        computed = (Fraction(spare) * gamma + Fraction(dot64)) * (1 - 12 * U64)
        norms = 1 - growth(lane_steps(dim) + 4, U64)
        off = gamma + growth(lane_steps(dim) + 1, U64)
        yield off <= computed * norms * (1 - SPARED)


def slack_underflow(each: float) -> Checks:
    """Each product of two dots, and a compared logit, lose 2^-150."""
    for dim in DIMS:
        lost = (2 * dim * (1 + growth(dim)) + 1) * Fraction(2) ** -150
        yield lost <= 2 * dim * Fraction(each) * (1 - SPARED)


def coded_slack(steps: float, dot64: float, norm: float) -> Checks:
    """Bound errors of numbers of w, of a sum over spans, and of parts, relative to ||parts|| ||g||.

    Eight lanes add a term for each 32 coordinates and one for their low, or one for each 16; then
    come the tree of lanes and the query's scale.
    """
    for dim in range(32, LARGEST_DIM + 1, 32):
        off = growth(dim // 16 + 3 + 1 + VALUE) * (1 + growth(VALUE))
        computed = (Fraction(dim, LANES) + Fraction(steps)) * U32 * Fraction(GAMMA_SPARE)
        yield off <= computed * (1 - 12 * U64)
        yield growth(lane_steps(dim) + 1, U64) + 12 * U64 <= Fraction(dot64) * (1 - SPARED)
        # ||h - g||: a rounded difference, squares, their sum, its root and the product with norm.
        yield growth(lane_steps(dim) + 2, U64) / 2 + 4 * U64 <= Fraction(norm) - 1


def exact_sums(code: float) -> Checks:
    """Sums of four products of a lane, and of the codes of 32 coordinates, fit float32."""
    yield 4 * 128 * int(code) <= 1 << 24
    yield 32 * int(code) <= 1 << 24


def finite(largest: float) -> Checks:
    for dim in DIMS:
        yield Fraction(largest) * (1 + growth(dim + 1)) <= Fraction(MOST32)


def threshold64(computed: Symbol, share: float, rounded: Fraction, slack: str) -> Iterator[str]:
    """In any binade w - slack - share |w| is at most w - rounded |w| - slack, up to SPARED."""
    exact = f"w - {slack} - {number(share)} * a"
    for a, s, allowed in (((1, 2), (0, 2), Fraction(share) - rounded), ((0, 1), (1, 2), SPARED)):
        yield f"""w = d(w_); s = d(s_); a = d(a_);
        {{ a in [{a[0]}, {a[1]}] /\\ |w| <= {a[1]} /\\ s in [{s[0]}, {s[1]}]
        -> |{computed} - ({exact})| <= {number(allowed)} }}"""


WORST, OF_SLACK = Symbol("w", "d", "a"), Symbol("s", "d")


def rounding64(share: float) -> Checks:
    """A threshold from the worst of k exact logits, which adding the bias rounded."""
    worst: dict[str, Any] = {"values": {0: WORST}, "state": {SLACK: OF_SLACK}}
    threshold = assigned(scan.decide, "state[THRESHOLD]", ROUNDING64=share, **worst)
    yield from threshold64(threshold, share, U64, "s")


def rounding32(share: float) -> Checks:
    """A threshold from the k-th best float32 logit, which adding the bias rounded."""
    ranked: dict[str, Any] = {"ranked": WORST, "state": {SLACK: OF_SLACK}}
    floor = assigned(scan.decide_above, "floor", ROUNDING32=share, **ranked)
    yield from threshold64(floor, share, U32, "2b0 * s")


TOPK = "kernels.topk.descriptor"

THEOREMS = [
    Theorem("largest norm", f"{TOPK}.NORM_SPARE", largest_norm, 2, nearer_one),
    Theorem("slack", f"{TOPK}.GAMMA_SPARE", partial(slack, dot64=DOT64_SPARE), inf, nearer_one),
    Theorem("slack, dot64", f"{TOPK}.DOT64_SPARE", partial(slack, 1.0), 2e6),
    Theorem(
        "slack, codes",
        f"{TOPK}.CODED_STEPS",
        partial(coded_slack, dot64=DOT64_SPARE, norm=NORM_SPARE),
        2,
    ),
    Theorem("codes", "kernels.simd.planes.LARGEST_CODE", exact_sums, 2.1, mul),
    Theorem("slack, underflow", f"{TOPK}.DOT_UNDERFLOW", slack_underflow, 4),
    Theorem("logits, overflow", f"{TOPK}.LARGEST_LOGIT", finite, 4, mul),
    Theorem("worst of k", "kernels.topk.scan.ROUNDING64", rounding64, 4),
    Theorem("worst of k, float32", "kernels.topk.scan.ROUNDING32", rounding32, 2),
]
