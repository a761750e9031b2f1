"""Float32 logits beside exact ones, and thresholds from both: kernels/topk."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any

from logitsieve.kernels.topk import descriptor, scan
from logitsieve.kernels.topk.queries import SLACK
from proofs.certified import lane_steps
from proofs.expression import Symbol, assigned
from proofs.theorem import (
    DIMS,
    MOST32,
    U32,
    U64,
    Checks,
    Theorem,
    growth,
    multiplied,
    nearer_one,
    number,
)

# Of a slack: what no theorem about its terms takes, so that computing a threshold may.
SPARED = Fraction(1, 1 << 49)


def largest_norm(spare: float) -> Checks:
    """Squares are exact; their sum, its root and this product round."""
    for dim in DIMS:
        yield growth(lane_steps(dim), U64) / 2 + 3 * U64 <= Fraction(spare) - 1


def slack(spare: float, dot64: float) -> Checks:
    """In shares of ||w|| ||h||: a float32 dot in any order, and dot64; computed in float64."""
    for dim in DIMS:
        gamma = growth(dim)
        computed = (Fraction(spare) * gamma + Fraction(dot64)) * (1 - 12 * U64)
        norms = 1 - growth(lane_steps(dim) + 4, U64)
        off = gamma + growth(lane_steps(dim) + 1, U64)
        yield off <= computed * norms * (1 - SPARED)


def slack_underflow(each: float) -> Checks:
    """Products of two dots, and a logit that is compared, lose 2^-150 each."""
    for dim in DIMS:
        lost = (2 * dim * (1 + growth(dim)) + 1) * Fraction(2) ** -150
        yield lost <= 2 * dim * Fraction(each) * (1 - SPARED)


def finite(largest: float) -> Checks:
    """Sums of products overflow for no row that is answered, nor does its logit."""
    for dim in DIMS:
        yield Fraction(largest) * (1 + growth(dim + 1)) <= Fraction(MOST32)


def threshold64(computed: Symbol, share: float, rounded: Fraction, slack: str) -> Iterator[str]:
    """w - slack - share |w| is at most w - rounded |w| - slack, but for SPARED of that.

    In float64, which neither overflows nor underflows here: one binade stands for all.
    """
    exact = f"w - {slack} - {number(share)} * a"
    for a, s, allowed in (
        ((1, 2), (0, 2), Fraction(share) - rounded),
        ((0, 1), (1, 2), SPARED),
    ):
        yield f"""w = d(w_); s = d(s_); a = d(a_);
        {{ a in [{a[0]}, {a[1]}] /\\ |w| <= {a[1]} /\\ s in [{s[0]}, {s[1]}]
        -> |{computed} - ({exact})| <= {number(allowed)} }}"""


WORST, OF_SLACK = Symbol("w", "d", "a"), Symbol("s", "d")


def rounding64(share: float) -> Checks:
    """The worst of k exact logits, whose own sum was rounded when its bias was added."""
    worst: dict[str, Any] = {"values": {0: WORST}, "state": {SLACK: OF_SLACK}}
    threshold = assigned(scan.decide, "state[THRESHOLD]", ROUNDING64=share, **worst)
    yield from threshold64(threshold, share, U64, "s")


def rounding32(share: float) -> Checks:
    """The k-th best of float32 logits, rounded likewise."""
    ranked: dict[str, Any] = {"ranked": WORST, "state": {SLACK: OF_SLACK}}
    floor = assigned(scan.decide_above, "floor", ROUNDING32=share, **ranked)
    yield from threshold64(floor, share, U32, "2b0 * s")


TOPK = "kernels.topk.descriptor"

THEOREMS = [
    Theorem("largest norm", f"{TOPK}.NORM_SPARE", largest_norm, 2, nearer_one),
    Theorem(
        "slack",
        f"{TOPK}.GAMMA_SPARE",
        partial(slack, dot64=descriptor.DOT64_SPARE),
        inf,
        nearer_one,
    ),
    Theorem("slack, dot64", f"{TOPK}.DOT64_SPARE", partial(slack, 1.0), 2e6),
    Theorem("slack, underflow", f"{TOPK}.DOT_UNDERFLOW", slack_underflow, 4),
    Theorem("logits, overflow", f"{TOPK}.LARGEST_LOGIT", finite, 4, multiplied),
    Theorem("worst of k", "kernels.topk.scan.ROUNDING64", rounding64, 4),
    Theorem("worst of k, float32", "kernels.topk.scan.ROUNDING32", rounding32, 2),
]
