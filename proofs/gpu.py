"""Rounding of a GPU: coordinates, cuts and sums of exponentials.

Triton's arithmetic in float32 and float64 rounds to the nearest, and may fuse. Of a GPU's own units
this is assumed, and no theorem: tensor cores cut each addend off at CUT of the largest, and their
result likewise (Fasi, Higham, Mikaitis, Pranesh 2021, Numerical behavior of NVIDIA tensor cores);
they cut float32 factors down to tf32; logarithms are within LOG of themselves, divisions within
DIVISION, and e^x within EXPONENTIAL of e^(x (1 + PRODUCT)).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil

import numpy as np
import torch

from logitsieve.gpu import matrix
from logitsieve.gpu.kernels import bounds, encode_query, log_z, scan
from proofs import certified
from proofs.certified import SPARED, float32_cuts
from proofs.theorem import (
    DIMS,
    U32,
    U64,
    Checks,
    Theorem,
    growth,
    nearer_one,
    number,
)

CUT = Fraction(1, 1 << 23)
LOG, DIVISION = 8 * U32, 4 * U32  # four units in the last place, two
EXPONENTIAL, PRODUCT = 4 * U32, 2 * U32
TF32, BFLOAT16 = "@t = float<11,-1000,zr>;\n", "@t = float<8,-1000,zr>;\n"


# Factors in parts


def cut_tail(tail: int) -> int:
    """The last 13 bits of a float32, cut to the 11 that tf32 keeps from the first that is set."""
    return tail >> max(0, tail.bit_length() - 11) << max(0, tail.bit_length() - 11)


def split_products(dropped: float) -> Checks:
    """Three products of tf32x3; of factors from 1 to 2, in eighths, as powers of two are exact."""
    rest = max(tail - cut_tail(tail) for tail in range(1 << 13))
    x_rest, y_rest = "(x - t(x) - t(x - t(x)))", "(y - t(y) - t(y - t(y)))"
    parts = "t(x) * t(y) + t(x) * t(y - t(y)) + t(x - t(x)) * t(y)"
    lost = f"(x - t(x)) * (y - t(y)) + t(x) * {y_rest} + {x_rest} * t(y)"
    for i, j in product(range(8, 16), repeat=2):
        yield f"""{TF32}x = f(x_); y = f(y_);
        {{ x in [{i}b-3, {i + 1}b-3] /\\ y in [{j}b-3, {j + 1}b-3]
        /\\ |{x_rest}| <= {rest}b-23 /\\ |{y_rest}| <= {rest}b-23
        -> |x * y - ({parts})| <= {number(Fraction(dropped) * i * j / 64)} }}
        x * y - ({parts}) -> {lost};"""


def split_factor(dropped: float, rounding: str) -> Iterator[str]:
    """A factor in two parts beside an exact one."""
    yield f"""{rounding}x = f(x_);
    {{ x in [1, 2] -> |x - t(x) - t(x - t(x))| <= {number(dropped)} }}"""


# Sums on tensor cores and beside them


def cut_sums(cut_off: float, width: int, passes: int, among: int) -> Checks:
    """Each of `passes` adds `width` products to a sum and cuts off these, the sum and the result.

    `passes` add up `among` products; those of the small parts beside them are 2^-10 as large.
    """
    small = 2 * passes * Fraction(width + 2, 1 << 10)
    yield (passes * (width + 2) + small) * CUT <= Fraction(cut_off) * among


def logit_sums(spare: float) -> Checks:
    """Two parts of 16 weights: as many products of each, in steps of 8 or 16."""
    for width in (8, 16):
        passes = 2 * 16 // width
        cut = passes * (width + 2) * CUT * (1 + Fraction(1, 100))
        yield cut <= Fraction(spare) * 16 * Fraction(matrix.CUT_OFF)


def coordinate(spare: float) -> Checks:
    """Norms of vectors in float64, sums of sums in float64, and the last rounding."""
    many = matrix.STEP * Fraction(matrix.CUT_OFF) + Fraction(matrix.DROPPED[torch.float32])
    for dim in DIMS:
        steps = ceil(dim / matrix.LANES)
        sums = 1 + growth(dim, U64)
        allowed = Fraction(spare) * (max(many, steps * U32) + U32)
        yield (max(many, growth(steps)) + U32) * (1 + U32) * sums <= allowed


def coordinate_underflow(each: float) -> Checks:
    """Three products at 2^-149 each, and parts cut off at 2^-136; vectors of D numbers."""
    for dim in DIMS:
        yield 3 * dim * Fraction(2) ** -149 <= Fraction(each) and Fraction(2) ** -136 <= each


# Cuts


def cut_of_worst(share: float) -> Checks:
    """The k-th best, rounded to float32, less the margin and this share of both."""
    exact = f"w - m - {number(share)} * (a + m)"
    computed = f"f(d(d(f(w) - m) - {number(share)} * d(a + m)))"
    yield from float32_cuts(f"{computed} - ({exact})", share, SPARED + Fraction(share))


def cut_of_reach(slack_spare: float, reach_spare: float) -> Checks:
    """A cut at most r - 2 m - U32 |r|, m being a slack: logits that reach r were rounded."""
    spare, share = single(slack_spare), single(reach_spare)
    slack = f"f(f(m) * {number(spare)})"
    exact = f"w - 2 * (m * {number(spare)}) - {number(share)} * a"
    for power, eighth, fused in product((-100, 0, 100), range(8, 16), (True, False)):
        unit = Fraction(2) ** (power - 3)
        low, high = eighth * unit, (eighth + 1) * unit
        last = f"{number(share)} * a"
        computed = f"f(f(w - 2 * {slack}) - {last if fused else f'f({last})'})"
        # A slack is small beside the logit, or what it is raised by is large beside roundings.
        for least, most in ((Fraction(0), low / 64), (low / 64, low), (low, 64 * low)):
            allowed = (share - U32) * low + 2 * (spare - 1) * least
            yield f"""w = f(w_); a = f(a_); m = d(m_);
            {{ a in [{number(low)}, {number(high)}] /\\ |w| <= {number(high)}
            /\\ m in [{number(least)}, {number(most)}]
            -> |{computed} - ({exact})| <= {number(allowed)} }}"""


def single(value: float) -> Fraction:
    """A constant as float32 arithmetic takes it."""
    return Fraction(float(np.float32(value)))


# Sums of exponentials


def sums(off: float) -> Checks:
    """Exponents down to -88, of weights of a group, then of groups; and 512 steps of a sum.

    Bounds are rounded to float32 beside that (gpu_log_z.py), groups are added up in float64.
    """
    reach = 88
    yield f"""u = f(u_); m = f(m_);
    {{ |u - m| * s in [0, {reach}] /\\ |(u - m) * s| <= {reach} /\\ s in [1b-20, 1b20]
    -> |f(f(u - m) * f(s)) - (u - m) * s| <= {number(3 * U32 * reach * (1 + 4 * U32))} }}"""
    within = (3 * U32 * reach + PRODUCT * reach + EXPONENTIAL) * (1 + Fraction(1, 10_000))
    among = (2 * U32 * reach + PRODUCT * reach + EXPONENTIAL + U32) * (1 + Fraction(1, 10_000))
    added = (1 + growth(512)) * (1 + growth(1 << 15, U64)) * (1 + 512 * Fraction(2) ** -126)
    yield (1 + within) * (1 + among) * added - 1 <= Fraction(off)


MATRIX, KERNELS = "gpu.matrix", "gpu.kernels"
DROPPED = matrix.DROPPED
REACH, SLACK = scan.REACH_SPARE.value, scan.SLACK_SPARE.value

THEOREMS = [
    Theorem(
        "tf32x3", "what three products leave out of one",
        f"{MATRIX}.DROPPED", DROPPED[torch.float32], split_products, 2,
    ),
    Theorem(
        "float16 weights", "what two parts of tf32 leave out of a factor",
        f"{MATRIX}.DROPPED", DROPPED[torch.float16], partial(split_factor, rounding=TF32), 2.1,
    ),
    Theorem(
        "bfloat16 weights", "what two parts of bfloat16 leave out of a factor",
        f"{MATRIX}.DROPPED", DROPPED[torch.int16], partial(split_factor, rounding=BFLOAT16), 2.1,
    ),
    Theorem(
        "coordinates on tensor cores", "sums of STEP products in tf32x3",
        f"{MATRIX}.CUT_OFF", matrix.CUT_OFF,
        partial(cut_sums, width=8, passes=4, among=matrix.STEP), 4,
    ),
    Theorem(
        "logits on tensor cores", "sums of products of weights in two parts",
        f"{MATRIX}.STEPS_SPARE", matrix.STEPS_SPARE, logit_sums, 2,
    ),
    Theorem(
        "coordinates on a GPU", "c = L U h: growth, and sums in float64",
        f"{MATRIX}.COORDINATE_SPARE", matrix.COORDINATE_SPARE, coordinate, 1e6, nearer_one,
    ),
    Theorem(
        "coordinates on a GPU, underflow", "c = L U h: what D products lose of D coordinates",
        f"{MATRIX}.UNDERFLOW", matrix.UNDERFLOW, coordinate_underflow, 1e4,
    ),
    Theorem(
        "bound on a GPU", "what bounds round, in shares of T",
        f"{KERNELS}.encode_query.BOUND_MARGIN", encode_query.BOUND_MARGIN.value,
        partial(certified.margin, fusions=(True,)), 2.5,
    ),
    Theorem(
        "bound on a GPU, underflow", "what bounds round where T is below 2^-80",
        f"{KERNELS}.encode_query.LEAST_MARGIN", encode_query.LEAST_MARGIN.value,
        certified.underflow, 3,
    ),
    Theorem(
        "outside on a GPU", "||E h||^2 - ||y||^2 in float64, in shares of both, in any order",
        f"{KERNELS}.encode_query.CANCELLED", encode_query.CANCELLED.value,
        partial(certified.cancelled, steps=int), 4,
    ),
    Theorem(
        "norms on a GPU", "||a - g|| and rho in float64",
        f"{KERNELS}.encode_query.ROUNDED", encode_query.ROUNDED.value, certified.norm,
        1e6, nearer_one,
    ),
    Theorem(
        "dot64 on a GPU", "an exact logit beside the real number",
        f"{KERNELS}.encode_query.UNIT64", encode_query.UNIT64.value,
        partial(certified.exact_steps, encode_query.EXACT_STEPS.value), 16,
    ),
    Theorem(
        "left on a GPU", "what of w - U^T L^T w' is within the span of U, and ||E h|| + ||y||",
        f"{KERNELS}.encode_query.LEFT_SPARE", encode_query.LEFT_SPARE.value, certified.left,
        2e4, nearer_one,
    ),
    Theorem(
        "cut of bounds", "the k-th best less the margin, rounded to float32 twice",
        f"{KERNELS}.bounds.CUT_SPARE", bounds.CUT_SPARE.value, cut_of_worst, 2,
    ),
    Theorem(
        "cut of logits", "what reaches the k-th best, by float32 logits and their slack",
        f"{KERNELS}.scan.REACH_SPARE", REACH, partial(cut_of_reach, SLACK), 1.5,
    ),
    Theorem(
        "cut of logits, slack", "the slack itself, in float32",
        f"{KERNELS}.scan.SLACK_SPARE", SLACK,
        partial(cut_of_reach, reach_spare=REACH), 32, nearer_one,
    ),
    Theorem(
        "sums of weights", "sums of e^x in float32 for an interval of log Z",
        f"{KERNELS}.log_z.OFF", log_z.OFF.value, sums, 2,
    ),
]  # fmt: skip
