"""log Z in float64, and from one pass of float32 dots: kernels/sampling.

The C library's exp and log1p are assumed to be within a unit in the last place, LIBM.
"""

from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

from logitsieve.kernels.sampling import log_z
from logitsieve.kernels.sampling.quick_log_z import LOG_REACH, LOG_SPARE, STEP, SUMMED
from logitsieve.kernels.simd.exponential import ERROR32, ERROR64, LOWEST, LOWEST64
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.topk.queries import CHUNK
from proofs.exponential import exponential_below
from proofs.expression import Symbol, assigned
from proofs.theorem import U32, U64, Checks, Theorem, growth, number

LIBM = 2 * U64
COMPUTED = 16 * U64  # of an error computed in float64
ROWS = [*range(1, 4097, 5), *(1 << p for p in range(12, 27))]
DEEPEST = 745  # nats below which e^x is 0 in float64


def spread(share: float) -> Checks:
    """An exponent is rounded twice; the exponents of all replacements add up to at most it."""
    most, twice = -Fraction(LOWEST64), 2 * U64 + U64 * U64
    loaded: dict[str, Any] = {"logits": [Symbol("x", "d")], "i": 0, "top": Symbol("n", "d")}
    exponent = assigned(log_z._sum_of_exponentials, "scaled", scale=Symbol("s", "d"), **loaded)
    yield f"""x = d(x_); n = d(n_); s = d(s_);
    {{ x - n in [-1b200, -1b-200] /\\ s in [1b-30, 1b30]
    -> {exponent} -/ ((x - n) * s) in [{number(-twice)}, {number(twice)}] }}"""
    yield growth(1, twice * most) + Fraction(ERROR64) * 2 <= Fraction(share) - COMPUTED


def step(share: float) -> Checks:
    """Additions of lanes, pairs and chunks round, and for each chunk an exponential, a product."""
    for rows in ROWS:
        chunks = rows // CHUNK + 1
        rounded = growth(CHUNK // LANES + LANES.bit_length() - 1 + 3 * chunks, U64)
        allowed = Fraction(share) * (CHUNK // LANES + LANES + 2 * chunks)
        yield rounded + growth(chunks, LIBM) * (1 + rounded) <= allowed * (1 - COMPUTED)


def tiny(least: float) -> Checks:
    """An exponential is taken for 0, and would have grown by replacements of the top."""
    below = 1 / exponential_below(-Fraction(LOWEST64) * (1 - 4 * U64))
    yield below + 2 * Fraction(2) ** -1074 <= Fraction(least) * (1 - COMPUTED)


def log_error(share: float) -> Checks:
    """log1p of an end of the interval rounds, and so does the product with the share."""
    yield (1 + LIBM) * (1 + U64) * (1 - Fraction(share)) <= 1
    yield (1 - LIBM) * (1 - U64) * (1 + Fraction(share)) >= 1


def rough(share: float) -> Checks:
    yield Fraction(ERROR32) <= Fraction(share) * (1 - COMPUTED)


def rounded(share: float) -> Checks:
    """Bound the rounding of a scaled logit less the largest, `most`; it is at most 88 nats.

    `w` is a rounded logit times the rounded scale, rounded too unless the CPU fuses it with the
    subtraction. `u` is the loss of subnormal numbers. Above LOOSE / ROUNDED all rows are exact.
    """
    thrice = number((1 + U32) ** 3 - 1)
    parts = [(low << power, (low + 1) << power) for power in range(17) for low in range(4, 8)]
    for low, high in ((0, 1), (1, 2), (2, 3), (3, 4), *parts):
        size = high + 88
        allowed = Fraction(share) * (low + 90) * (1 - COMPUTED)
        yield f"""m = f(m_); z = w + u;
        {{ |m| in [{low}, {high}] /\\ |y| <= {size} /\\ |y - m| <= 88
        /\\ w -/ y in [-{thrice}, {thrice}] /\\ |u| <= 1b-100
        -> |f(z - m) - (y - m)| <= {number(allowed)} }}
        f(z - m) - (y - m) -> (f(z - m) - (z - m)) + ((w - y) + u);"""


def quick_sums(share: float, each: float) -> Checks:
    """A row's exponent is a rounded product and difference; adding it rescales earlier rows.

    The product's error is relative to DEEPEST here, and to the largest logit in `logarithm`.
    """
    for rows in ROWS:
        exponents = 2 * DEEPEST * U64 * (1 + U64)
        lost = growth(1, exponents) + growth(2 * rows + 64, U64) + growth(rows + 1, LIBM)
        yield lost * (1 + lost) <= (Fraction(share) + Fraction(each) * rows) * (1 - COMPUTED)


def clamped(least: float) -> Checks:
    """e^-87 replaces smaller exponentials."""
    most = 1 / exponential_below(-Fraction(float(LOWEST))) * (1 + Fraction(ERROR32))
    yield most <= Fraction(least) * (1 - COMPUTED)


def logarithm(share: float, flat: float) -> Checks:
    """A logarithm within 37 nats of 0, and its addition to the largest scaled logit, round."""
    nats = 37
    yield LIBM * nats + U64 * nats * (1 + LIBM) + COMPUTED / 16 <= Fraction(share) * Fraction(flat)
    yield Fraction(share) >= 2 * U64


def printed(share: float) -> Checks:
    """y - h less a share of |y| + h is a lower bound; y was rounded twice, h ends log(1 + S)."""
    twice = number(2 * U64 + U64 * U64)
    for y, h in product(range(8), range(8)):
        if max(y, h) >= 4:  # in quarters: one of them is from 1 to 2
            allowed = number(Fraction(share) * (y + h) / 4)
            yield f"""a = d(a_); h = d(h_);
            {{ a -/ y in [-{twice}, {twice}] /\\ y in [-{y + 1}b-2, -{y}b-2]
            /\\ h in [{h}b-2, {h + 1}b-2]
            -> |d(d(a - h) - d({number(share)} * d(h - a))) - (y - h - {number(share)} * (h - y))|
            <= {allowed} }}"""


def ranks(share: float) -> Checks:
    """A logit's distance from the top, log p, a score, the share and a quotient round."""
    yield growth(5, U64) <= Fraction(share) * (1 - COMPUTED)


def raised(share: float) -> Checks:
    """The sum of exponentials of a row's ids, and its logarithm, round."""
    for count in ROWS[1:]:
        lost = growth(2, LIBM) + growth(count - 1, U64) * (1 + LIBM)
        yield lost * (1 + lost) <= Fraction(share) * count * (1 - COMPUTED)


ROUNDING, MERGE = "kernels.sampling.rounding", "kernels.topk.merge"
EXACT, QUICK = "kernels.sampling.log_z", "kernels.sampling.quick_log_z"

THEOREMS = [
    Theorem("log Z, exponents", f"{EXACT}.SPREAD", spread, 4),
    Theorem("log Z, additions", f"{EXACT}.STEP", step, 2),
    Theorem("log Z, underflow", f"{EXACT}.TINY", tiny, 1 << 22),
    Theorem("log Z, logarithm", f"{EXACT}.LOG_ERROR", log_error, 1.5),
    Theorem("quick log Z, exponentials", f"{QUICK}.ROUGH", rough, 1.3),
    Theorem("quick log Z, exponents", f"{QUICK}.ROUNDED", rounded, 1.1),
    Theorem("quick log Z, sums", f"{QUICK}.SUMMED", partial(quick_sums, each=STEP), 4),
    Theorem("quick log Z, rows", f"{QUICK}.STEP", partial(quick_sums, SUMMED), 4),
    Theorem("quick log Z, underflow", f"{QUICK}.TINY", clamped, 1.5),
    Theorem("quick log Z, logarithm", f"{QUICK}.LOG_SPARE", partial(logarithm, flat=LOG_REACH), 4),
    Theorem("quick log Z, reach", f"{QUICK}.LOG_REACH", partial(logarithm, LOG_SPARE), 4),
    Theorem("printed log p", f"{ROUNDING}.ROUNDED", printed, 4),
    Theorem("raised log Z", f"{ROUNDING}.SUMMED", raised, 4),
    Theorem("ranks of beams", f"{MERGE}.RANK_ROUNDING", ranks, 1.7),
]
