"""Draws by Gumbel's trick on the host: the ids that kernels/sampling/gumbel.py passes over.

The C library's log and exp are assumed to err as in log_z.py. An id wins a draw if its scaled logit
s and its noise G = -log E, E = l or l + e, reach M as computed, with l a sixteenth of -log u of its
block and e its own -log u; and -log u >= 1 - u. The largest s is 0, with noise of at least -3.7,
and G is at most 39.6, as u is from 2^-53 to 1 - 2^-53. So s is at least -44, and neither its weight
e^s nor e^-M underflows in float32. The 1 - u of the tests is truncated to a multiple of 2^-31, then
rounded.
"""

from __future__ import annotations

from fractions import Fraction

from logitsieve.kernels.simd.exponential import ERROR64
from proofs.log_z import LIBM
from proofs.theorem import U32, U64, Checks, Theorem, nearer_one

NATS = 40  # above |G|, and above |s + G| of an id that wins


def passed_over(spare: float) -> Checks:
    """A logarithm and sums, for l + e and e^{s - M}; in float32 1 - u, and its upper bound.

    That is w e^-M - r of a weight w, rounded twice, with r a sixteenth of the block's 1 - u. Both
    sides are linear in r, which is at most l: 0 or all of l + e.
    """
    off = (LIBM + U64) * NATS * (1 + U64)
    exponential = 1 / ((1 - off) * (1 - U64))
    rest = (1 + U32) / (1 - LIBM)
    weight, noise = (1 - Fraction(ERROR64)) * (1 - U32), (1 - LIBM) * (1 - U64) * (1 - U32)
    limit = Fraction(spare) * weight * noise * (1 - U32)
    for least in (Fraction(0), exponential):
        rounded = least / (1 - LIBM) * (1 + U32)
        yield rest * (exponential - least) <= (limit - rounded) * (1 - U32)


THEOREMS = [
    Theorem("draws, passed over", "kernels.sampling.gumbel.SPARE", passed_over, 5, nearer_one)
]
