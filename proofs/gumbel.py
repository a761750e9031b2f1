"""Draws by Gumbel's trick on the host: ids that are passed over, kernels/sampling/gumbel.py.

Of log and exp of the C library is assumed what log_z.py assumes. An id wins a draw if its scaled
logit s and its noise G = -log L, L = -log u, reach M as computed; and L >= 1 - u. The largest
s is 0, with noise of -3.7 at least, and G is 37 at most: u is from 2^-53 to 1 - 2^-53. So s is -41
at least, and neither its weight e^s nor e^-M underflows in float32. The 1 - u of the test is cut to
a multiple of 2^-31, then rounded.
"""

from __future__ import annotations

from fractions import Fraction

from logitsieve.kernels.sampling import gumbel
from logitsieve.kernels.simd.exponential import ERROR64
from proofs.log_z import LIBM
from proofs.theorem import U32, U64, Checks, Theorem, nearer_one

NATS = 38  # more than |G|, and than |s + G| of an id that wins


def passed_over(spare: float) -> Checks:
    """Two logarithms and a sum of s + G; in float32 1 - u, a weight, e^-M and their product."""
    off = 2 * LIBM + (LIBM + U64) * NATS * (1 + U64)
    needed = (1 + U32) / (1 - off)
    weight, reach = (1 - Fraction(ERROR64)) * (1 - U32), (1 - LIBM) * (1 - U64) * (1 - U32)
    yield needed <= Fraction(spare) * weight * reach * (1 - U32)


THEOREMS = [
    Theorem(
        "draws, passed over", "a weight beside the least that wins",
        "kernels.sampling.gumbel.SPARE", gumbel.SPARE, passed_over, 5, nearer_one,
    ),
]  # fmt: skip
