"""Bounds by the levels of a sketch (docs/sketch.md)."""

from fractions import Fraction
from functools import partial
from operator import mul
from types import SimpleNamespace
from typing import Any

import numpy as np

from logitsieve.kernels.simd.tables import LARGEST_SUM
from logitsieve.kernels.sketch.bounds import base_bounds
from logitsieve.kernels.sketch.levels import LEVELS, bounds_by, length_bounds
from proofs.expression import Symbol, traced
from proofs.sketch import BINADES, TWICE, finite, margins, scaled_sums, underflow
from proofs.theorem import Checks, Theorem, growth, number

WHOLE = 1 << 24  # below it every integer is a float32, and below twice it every even one


def fours(largest: float) -> Checks:
    """Magnitudes of four codes add up to a byte; three sums, two quotients and a product round."""
    yield Fraction(float(np.float32(largest))) * (1 + growth(6)) + 4 * Fraction(1, 2) < (
        LARGEST_SUM + 1
    )


def single(largest: float) -> Checks:
    """A code is a signed byte; three quotients and a product round."""
    yield Fraction(float(np.float32(largest))) * (1 + growth(4)) + Fraction(1, 2) < 128


def words(chunks: float) -> Checks:
    """A chunk adds two bytes of tables to a row's word."""
    yield 2 * int(chunks) * LARGEST_SUM < 1 << 16


def whole_tails(widest: float) -> Checks:
    """A group's sums are exact in float32, up to m S.

    m is the last level's largest odd integer, and S sums the magnitudes of codes. Twice a sum is
    even and below 2^25; less m S it is q.g, of magnitude at most m S.
    """
    yield LEVELS[-1].most * (int(widest) // 4 * LARGEST_SUM) < WHOLE


def bounds(fused: bool, magnitude: Fraction, goal: str) -> str:
    """Bounds are summed from terms of at most `magnitude`.

    `dot` and `tail` are within TWICE of X and Y, the sums of codes; R, K and E are the float64
    factors REST, ERROR and the level's, at least NORMAL.
    """
    most, half = number(magnitude), number(magnitude / 2)
    base, above = _base(fused)
    estimate, upper = _of_level(fused)
    inner, error = "f(error + tail)", "(n * R + s * K + t * E)"
    return f"""dot = f(dot_); tail = f(tail_); error = f(E);
    s = f(s_); t = f(t_); b = f(b_); n = f(n_);
    base = {base};
    above = {above};
    estimate = {estimate};
    upper = {upper};
    A = b + s * X;
    B = A + t * Y;
    {{ dot -/ X in [{number(-TWICE)}, {number(TWICE)}]
    /\\ tail -/ Y in [{number(-TWICE)}, {number(TWICE)}]
    /\\ R in [1b-125, 1b126] /\\ K in [1b-125, 1b126] /\\ E in [1b-125, 1b126]
    /\\ |n * R| <= {half} /\\ |s * K| <= {half} /\\ |t * E| <= {half}
    /\\ |s * X| <= {most} /\\ |A| <= {most} /\\ |A + s * K| <= {most}
    /\\ |t * Y| <= {most} /\\ |t * Y + t * E| <= {most} /\\ |B| <= {most}
    /\\ |A + s * K + (t * Y + t * E)| <= {most} /\\ |B + {error}| <= {most} -> {goal} }}
    t * (error + tail) -> t * error + t * tail;
    t * {inner} - (t * Y + t * E) -> (t * {inner} - t * (error + tail))
    + (t * tail - t * Y) + (t * error - t * E);
    above + t * {inner} -> (A + s * K + (t * Y + t * E)) + (above - (A + s * K))
    + (t * {inner} - (t * Y + t * E));
    {UPPER} -> (upper - (above + t * {inner} + n * R)) + (above - (A + s * K))
    + (t * {inner} - (t * Y + t * E));
    {LOWER} -> (base - A) + 2 * (estimate - (base + t * tail)) - (above - (base + s * K))
    - (upper - (above + t * {inner} + n * R)) + (t * tail - t * Y)
    - (t * {inner} - t * (error + tail)) - (t * error - t * E);"""


def _base(fused: bool) -> tuple[str, str]:
    query = SimpleNamespace(sum="sum", scale="scale", error=Symbol("f(K)", "f"))
    dot: dict[str, Any] = {"scale_sums": lambda *_: Symbol("dot", "f")}
    numbers = Symbol("s", "f"), Symbol("b", "f"), query, "sums"
    base, above = traced(base_bounds, *numbers, fused=fused, **dot).returned
    return str(base), str(above)


def bounds_by_lengths(fused: bool, magnitude: Fraction, goal: str) -> str:
    """Bounds by level 0: n is the length of a row's tail and R that of the query's."""
    most, half = number(magnitude), number(magnitude / 2)
    base, above = _base(fused)
    both = Symbol("base", "f"), Symbol("above", "f")
    upper = traced(length_bounds, Symbol("n", "f"), Symbol("f(R)", "f"), both, fused=fused).returned
    return f"""dot = f(dot_); s = f(s_); b = f(b_); n = f(n_);
    base = {base};
    above = {above};
    upper = {upper};
    A = b + s * X;
    {{ dot -/ X in [{number(-TWICE)}, {number(TWICE)}]
    /\\ R in [1b-125, 1b126] /\\ K in [1b-125, 1b126] /\\ |n * R| <= {half} /\\ |s * K| <= {half}
    /\\ |s * X| <= {most} /\\ |A| <= {most} /\\ |A + s * K| <= {most}
    /\\ |A + s * K + n * R| <= {most} -> {goal} }}
    above -> A + s * K + (above - (A + s * K));
    {LENGTHS} -> (upper - (above + n * R)) + (above - (A + s * K));"""


LENGTHS = "upper - (A + s * K + n * R)"
UPPER = "upper - (B + (n * R + s * K + t * E))"
LOWER = "(2 * estimate - upper) - (B - (n * R + s * K + t * E))"


def _of_level(fused: bool) -> tuple[str, str]:
    t, n, tail, base, above = (Symbol(name, "f") for name in ("t", "n", "tail", "base", "above"))
    numbers = t, n, tail, Symbol("error", "f"), Symbol("f(R)", "f"), (base, above)
    estimate, upper = traced(bounds_by, *numbers, fused=fused).returned
    return str(estimate), str(upper)


def margin(share: float) -> Checks:
    yield from scaled_sums(WHOLE, 1)
    yield from margins(bounds, (UPPER, LOWER), share, BINADES[::7])


def margin_of_lengths(share: float) -> Checks:
    yield from margins(bounds_by_lengths, (LENGTHS,), share, BINADES[::7])


UNDERFLOW_OF_LENGTHS = partial(underflow, bounds=bounds_by_lengths, ends=(LENGTHS,), power=1)
SUMS_OF_LENGTHS = "base", "s * f(K)", "above", "n * f(R)", "upper"
OVERFLOW_OF_LENGTHS = partial(finite, bounds=bounds_by_lengths, sums=SUMS_OF_LENGTHS)
UNDERFLOW = partial(underflow, bounds=bounds, ends=(UPPER, LOWER), power=1)
SUMS = "base", "s * f(K)", "above", "t * tail", "t * error", "estimate", "upper"
OVERFLOW = partial(finite, bounds=bounds, sums=(*SUMS, "t * f(error + tail)"))
QUERY = "kernels.sketch.encode_query"

THEOREMS = [
    Theorem("four codes of a tail", f"{QUERY}.LARGEST_FOUR", fours, 1.005, mul),
    Theorem("a code of a tail", f"{QUERY}.LARGEST_CODE", single, 1.005, mul),
    Theorem("words of a tail", "kernels.simd.tables.CHUNKS_AT_ONCE", words, 4.1, mul),
    Theorem("sums of a tail", "heads.sketch.MAX_TAIL", whole_tails, 1.08, mul),
    Theorem("bound by lengths", f"{QUERY}.BOUND_MARGIN", margin_of_lengths, 3),
    Theorem("bound by lengths, underflow", f"{QUERY}.LEAST_MARGIN", UNDERFLOW_OF_LENGTHS, 30),
    Theorem(
        "bound by lengths, overflow",
        "kernels.topk.descriptor.LARGEST_LOGIT",
        OVERFLOW_OF_LENGTHS,
        4,
        mul,
    ),
    Theorem("bound by levels", f"{QUERY}.BOUND_MARGIN", margin, 3),
    Theorem("bound by levels, underflow", f"{QUERY}.LEAST_MARGIN", UNDERFLOW, 30),
    Theorem("bound by levels, overflow", "kernels.topk.descriptor.LARGEST_LOGIT", OVERFLOW, 4, mul),
]
