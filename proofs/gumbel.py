"""Draws by Gumbel's trick on the host: ids that are passed over, kernels/sampling/gumbel.py.

Of log and exp of the C library is assumed what log_z.py assumes. An id wins a draw if its scaled
logit s and its noise G = -log E, E = l or l + e, reach M as computed, l being a sixteenth of -log u
of its block and e its own -log u; and -log u >= 1 - u. The largest s is 0, with noise of -3.7 at
least, and G is 39.6 at most: u is from 2^-53 to 1 - 2^-53. So s is -44 at least, and neither its
weight e^s nor e^-M underflows in float32. The 1 - u of the tests is cut to a multiple of 2^-31,
then rounded.
"""

from __future__ import annotations

from fractions import Fraction

from logitsieve.kernels.simd.exponential import ERROR64
from proofs.log_z import LIBM
from proofs.theorem import U32, U64, Checks, Theorem, nearer_one

NATS = 40  # more than |G|, and than |s + G| of an id that wins


def passed_over(spare: float) -> Checks:
    """A logarithm and sums, for l + e beside e^{s - M}; in float32 1 - u, and the most it may be.

    That is w e^-M - r of a weight w, rounded twice, r being a sixteenth of the block's 1 - u. Both
    sides are linear in r, which is at most l: nothing, or all of l + e.
    """
    off = (LIBM + U64) * NATS * (1 + U64)
    exponential = 1 / ((1 - off) * (1 - U64))
    rest = (1 + U32) / (1 - LIBM)
    weight, reach = (1 - Fraction(ERROR64)) * (1 - U32), (1 - LIBM) * (1 - U64) * (1 - U32)
    limit = Fraction(spare) * weight * reach * (1 - U32)
    for least in (Fraction(0), exponential):
        rounded = least / (1 - LIBM) * (1 + U32)
        yield rest * (exponential - least) <= (limit - rounded) * (1 - U32)


THEOREMS = [
    Theorem("draws, passed over", "kernels.sampling.gumbel.SPARE", passed_over, 5, nearer_one),
]
