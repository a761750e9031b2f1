"""Draws on a GPU: noise in float32, noisy logits and cuts of them.

Of logarithms and divisions is assumed what gpu.py assumes.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import pairwise, product

from logitsieve.gpu.kernels import gumbel, select_groups
from proofs.certified import float32_cuts
from proofs.gpu import DIVISION, LOG
from proofs.theorem import U32, Checks, Theorem, nearer_one, number


def noisy(spare: float) -> Checks:
    """q = a x + b G is within 2^-22 of itself and this share of b, |G| being below 40.

    P = a x; a and b are rounded to float32. b is from 1/2 to 1, as powers of two are exact, and q
    in steps of a quarter, until b is nothing beside it.
    """
    steps = [Fraction(0), *(Fraction(n, 4) * 2**p for p in range(1, 9) for n in (4, 5, 6, 7))]
    for (low, high), quarter, fused in product(pairwise(steps), (2, 3), (True, False)):
        least, most = Fraction(quarter, 4), Fraction(quarter + 1, 4)
        allowed = 4 * U32 * low + Fraction(spare) * least
        yield noisy_script(low, high, most, allowed, fused)
    for quarter, fused in product(range(4, 8), (True, False)):
        low, high = Fraction(quarter, 4), Fraction(quarter + 1, 4)
        yield noisy_script(low, high, Fraction(1, 256), 4 * U32 * low, fused)


def noisy_script(
    low: Fraction, high: Fraction, most: Fraction, allowed: Fraction, fused: bool
) -> str:
    noise = 40 * most
    rounded = "f(x * f(a)) + g * f(b)" if fused else "f(x * f(a)) + f(g * f(b))"
    return f"""x = f(x_); g = f(g_);
    {{ a in [1b-20, 1] /\\ b in [1b-20, 1] /\\ |x * a| in [0, {number(high + noise)}]
    /\\ |x| >= 1b-60 /\\ |x| <= 1b100
    /\\ |g * b| <= {number(noise)} /\\ |x * a + g * b| <= {number(high)}
    -> |f({rounded}) - (x * a + g * b)| <= {number(allowed)} }}"""


def surely(best_spare: float, twice_spare: float) -> Checks:
    """A cut at most q - 2 m - 2^-22 (|q| + |q| + 2 m): two noisy logits are rounded."""
    share, twice = Fraction(best_spare), Fraction(twice_spare)
    exact = f"w - {number(twice)} * m - {number(share)} * a"
    computed = f"f(f(w - f(d({number(twice)} * m))) - f({number(share)} * a))"
    room = 8 * U32 * (1 + 4 * U32)
    off = f"{computed} - ({exact})"
    yield from float32_cuts(off, share - room, twice - 2 - room, "f")


def surely_by_bound(best_spare: float, error_spare: float) -> Checks:
    """A cut at most q - m - 2^-22 (|q| + m), in float64 and rounded once to float32."""
    share, spare = Fraction(best_spare), Fraction(error_spare)
    exact = f"w - {number(spare)} * m - {number(share)} * a"
    computed = f"f(d(d(w - d({number(spare)} * m)) - d({number(share)} * a)))"
    room = 4 * U32 * (1 + 4 * U32)
    yield from float32_cuts(f"{computed} - ({exact})", share - room, spare - 1 - room)


LN2 = Fraction(6931471805599453, 10**16)  # but for 1e-16


def noise(error: float) -> Checks:
    """-log E, of E = -log u or a sum of two: u within two roundings, or near 1 by what it lacks, v.

    There log u is v log(w) / (w - 1), w = fl(1 - v): as log(1 - v) / v changes by less than 9/10 of
    itself for each 1 that v changes by, v below 1/2, it is off by 9/10 U32 / 2 for w. The least of
    16 is -log u over 16, which rounds nothing: E is 2^-57 at least.
    """
    twice = number(2 * U32 * (1 + U32))
    yield f"""{{ @FIX(h, 0) /\\ h in [1, 4294967295] /\\ e in [0, 1b-32]
    -> f(f(h) * 1b-32 + e) -/ (h * 1b-32 + e) in [-{twice}, {twice}] }}"""
    yield "w = f(w_); { w in [1b-1, 1] -> f(w - 1) - (w - 1) in [0, 0] }"
    uniform = 2 * U32 * (1 + U32)
    lower = uniform / (1 - uniform) / (LN2 - U32) + LOG
    near_one = uniform + LOG + DIVISION + U32 + Fraction(9, 10) * U32 / 2
    each = max(lower, near_one) * (1 + 64 * U32)
    off = each + U32 * (1 + each)
    yield off <= 17 * U32
    yield off * (1 + off) + LOG * 57 * (LN2 + U32) <= Fraction(error)


KERNELS = "gpu.kernels"
BEST, TWICE = select_groups.BEST_SPARE.value, select_groups.TWICE_SPARE.value

THEOREMS = [
    Theorem(
        "noisy logits", "a x + b G in float32, in shares of b beside 2^-22 of it",
        f"{KERNELS}.select_groups.NOISY_SPARE", select_groups.NOISY_SPARE.value, noisy, 1.4,
    ),
    Theorem(
        "cut of noisy logits", "twice the error below the largest, in float32",
        f"{KERNELS}.select_groups.BEST_SPARE", BEST, partial(surely, twice_spare=TWICE), 2,
    ),
    Theorem(
        "cut of noisy logits, error", "twice the error itself, in float32",
        f"{KERNELS}.select_groups.TWICE_SPARE", TWICE,
        partial(surely, BEST), 4096, lambda value, by: 2 + (value - 2) / by,
    ),
    Theorem(
        "cut of noisy bounds", "the error below a draw's logit, rounded to float32",
        f"{KERNELS}.select_groups.BEST_SPARE", BEST,
        partial(surely_by_bound, error_spare=select_groups.ERROR_SPARE.value), 4,
    ),
    Theorem(
        "cut of noisy bounds, error", "the error itself",
        f"{KERNELS}.select_groups.ERROR_SPARE", select_groups.ERROR_SPARE.value,
        partial(surely_by_bound, BEST), 1e4, nearer_one,
    ),
    Theorem(
        "noise", "-log of a sum of one or two -log u, in float32",
        f"{KERNELS}.gumbel.NOISE_ERROR", gumbel.NOISE_ERROR.value, noise, 2,
    ),
]  # fmt: skip
