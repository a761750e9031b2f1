"""Bounds by the levels of a sketch on the host (docs/levels.md)."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from operator import mul
from types import SimpleNamespace
from typing import Any

import numpy as np

from logitsieve.kernels.simd.planes import LARGEST, SMALLEST
from logitsieve.kernels.simd.tables import LARGEST_SUM
from logitsieve.kernels.sketch.bounds import base_bounds
from logitsieve.kernels.sketch.encode_query import CoarseFactors, encode_tail
from logitsieve.kernels.sketch.levels import (
    FIRST_NORM,
    FIRST_SCALE,
    first_upper,
    last_bounds,
    middle_estimate,
    middle_upper,
)
from proofs.certified import BINADES, SPARED, TWICE, margins
from proofs.expression import Symbol, assigned, traced
from proofs.theorem import MOST32, Checks, Theorem, growth, number

WHOLE = 1 << 24  # below it every integer is a float32, and below twice it every even one


# The codes of a tail, and their sums


def codes(largest: float) -> Checks:
    """A code is a signed byte: x factor rounds to an integer of at most 127."""
    most, limit = number(float(np.float32(largest))), 127
    scale, x = Symbol("scale", "f"), Symbol("x", "f")
    factor = assigned(encode_tail, "factor", scale=scale)
    code = assigned(encode_tail, "r", x=x, factor=Symbol("factor", "f"), scale=scale)
    yield f"""m = f(m_); x = f(x_); scale = f(m / {most}); factor = {factor};
    {{ m in [{number(SMALLEST)}, {number(LARGEST)}] /\\ x / m in [-1, 1] -> |{code}| <= {limit} }}
    x * factor -> x / m * (m * factor) {{ m <> 0 }};
    m * factor -> {most} * (1 + (factor - 1 / scale) / (1 / scale))
    / (1 + (scale - m / {most}) / (m / {most})) {{ m <> 0, scale <> 0 }};"""


def fours(largest: float) -> Checks:
    """Magnitudes of four codes add up to a byte: three sums, two quotients and a product round."""
    yield Fraction(float(np.float32(largest))) * (1 + growth(6)) + 4 * Fraction(1, 2) < (
        LARGEST_SUM + 1
    )


def words(chunks: float) -> Checks:
    """A chunk adds two bytes of tables to a row's in a word."""
    yield 2 * int(chunks) * LARGEST_SUM < 1 << 16


def whole_tails(widest: float) -> Checks:
    """q.g is an integer of float32, |q| <= 15, and so are the terms of its sum.

    4 (4 B + 2 C - 3 S) + 2 L is even, and the sum of codes of a query times -12 .. 18.
    """
    total = int(widest) // 4 * LARGEST_SUM
    yield 15 * total < WHOLE
    yield 12 * total < WHOLE
    yield 18 * total < 2 * WHOLE


# The bounds


def scaled_sums() -> Checks:
    """A sum of codes times a query's scale is within TWICE of the product."""
    yield f"""scale = f(scale_); tail = f(S * scale);
    {{ @FIX(S, 0) /\\ |S| in [1, {WHOLE}] /\\ scale in [{number(SMALLEST)}, {number(LARGEST)}]
    -> tail -/ (S * scale) in [{number(-TWICE)}, {number(TWICE)}] }}"""


def bounds(fused: bool, magnitude: Fraction, goal: str) -> str:
    """Bounds summed from terms of at most `magnitude`.

    X and Y are sums q.g of the codes of the first coordinates and of the tail; `dot` and `tail` are
    within TWICE of them. R, K and E are the float64 factors REST, ERROR and the level's, at least
    NORMAL.
    """
    most, half = number(magnitude), number(magnitude / 2)
    query = CoarseFactors("sum", "scale", Symbol("f(K)", "f"), None, None)
    dot: dict[str, Any] = {"scale_sums": lambda *_: Symbol("dot", "f")}
    numbers = Symbol("s", "f"), Symbol("b", "f"), query, "sums"
    base, above = traced(base_bounds, *numbers, fused=fused, **dot).returned
    estimate, upper = _last(fused)
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


UPPER = "upper - (B + (n * R + s * K + t * E))"
LOWER = "(2 * estimate - upper) - (B - (n * R + s * K + t * E))"


def _last(fused: bool) -> tuple[str, str]:
    """The estimate and the bound by four bits."""
    names = {"scales": "t", "rests": "n", "bases": "base", "uppers": "above", "totals": "tail"}
    level = SimpleNamespace(**{name: {0: Symbol(text, "f")} for name, text in names.items()})
    query = SimpleNamespace(scale=1, last_error=Symbol("error", "f"), rest=Symbol("f(R)", "f"))
    estimate, upper = traced(last_bounds, query, level, fused=fused).returned
    return str(estimate), str(upper)


def same() -> Checks:
    """Bounds by one and by two bits are summed like bounds by four."""
    symbols = {name: Symbol(name, "f") for name in ("t", "n", "base", "above", "tail", "error")}
    t, n, base, above, tail, error = symbols.values()
    query = SimpleNamespace(
        **dict.fromkeys(("first", "middle", "scale")), first_error=error, middle_error=error,
        rest=Symbol("f(R)", "f"),
    )  # fmt: skip
    here: dict[str, Any] = {"scale_sums": lambda *_: tail, "coarse_numbers": lambda *_: None}
    here["number_lanes"] = lambda _, __, ___, kind: {FIRST_SCALE: t, FIRST_NORM: n}[kind]
    for fused in (True, False):
        estimate, upper = _last(fused)
        one = traced(first_upper, None, query, None, above, 0, fused=fused, **here)
        two = traced(middle_upper, query, (None, t, n), above, fused=fused, **here)
        middle = traced(middle_estimate, query, (None, t, n), base, fused=fused, **here)
        yield str(one.returned) == str(two.returned) == upper
        yield str(middle.returned) == estimate


def margin(share: float) -> Checks:
    yield from same()
    yield from scaled_sums()
    yield from margins(bounds, (UPPER, LOWER), share, BINADES[::7])


def underflow(least: float) -> Checks:
    allowed = Fraction(least) * (1 - SPARED)
    for fused, off in product((True, False), (UPPER, LOWER)):
        yield bounds(fused, Fraction(2) ** (BINADES[0] + 1), f"|{off}| <= {number(allowed)}")


def finite(largest: float) -> Checks:
    for fused in (True, False):
        for value in ("base", "s * f(K)", "above", "t * tail", "t * error", "estimate", "upper"):
            yield bounds(fused, Fraction(largest), f"|{value}| <= {number(MOST32)}")
        yield bounds(fused, Fraction(largest), f"|t * f(error + tail)| <= {number(MOST32)}")


QUERY = "kernels.sketch.encode_query"

THEOREMS = [
    Theorem("codes of a tail", f"{QUERY}.LARGEST_TAIL_CODE", codes, 1.02, mul),
    Theorem("four codes of a tail", f"{QUERY}.LARGEST_FOUR", fours, 1.005, mul),
    Theorem("words of a tail", "kernels.simd.tables.CHUNKS_AT_ONCE", words, 4.1, mul),
    Theorem("sums of a tail", "heads.certified.MAX_TAIL", whole_tails, 1.08, mul),
    Theorem("bound by levels", f"{QUERY}.LEVELS_MARGIN", margin, 3),
    Theorem("bound by levels, underflow", f"{QUERY}.LEAST_MARGIN", underflow, 30),
    Theorem("bound by levels, overflow", "kernels.topk.descriptor.LARGEST_LOGIT", finite, 4, mul),
]
