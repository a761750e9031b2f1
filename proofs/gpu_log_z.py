"""log Z on a GPU: gpu/kernels/exact_log_z.py, log_z.py and gpu/log_z.py.

Of float64 functions on a GPU this is assumed: exp and log are within two units in the last place,
LIBDEVICE. Sums are of positive numbers, in any order; fused steps round no more than others.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from logitsieve.gpu import log_z as printed
from logitsieve.gpu.kernels import exact_log_z, log_z
from logitsieve.gpu.plans.certified_draws import ROOM
from logitsieve.gpu.plans.draws import BLOCK, HELD, MOST_SHARES, SHARES
from logitsieve.gpu.plans.exact import group_of
from proofs.exponential import exponential_below
from proofs.theorem import U32, U64, Checks, Theorem, growth, number

LIBDEVICE = 4 * U64
COMPUTED = 16 * U64  # of an error, which is computed in float64, too
REACH = 708  # nats below the largest, beyond which an id counts as nothing
NATS = 88  # the same for weights in float32
ROWS = [*range(1, 4097, 5), *(n + i for n in (1 << p for p in range(12, 27)) for i in (0, 1))]
LARGEST_GROUP = 512  # ids whose float32 weights are added up
QUICK_ROWS = [rows for rows in ROWS if group_of(rows) <= LARGEST_GROUP]
TWICE = 2 * U64 + U64 * U64
EXPONENT = growth(1, TWICE * REACH) + LIBDEVICE * 2  # of an exponential with its exponents
REPLACED = 6 * U64  # an exponential, a sum and a product


# Beside all rows


def spread(share: float) -> Checks:
    """Exponents of a logit and of replacements, which add up to REACH; the exponential."""
    yield f"""x = d(x_); t = d(t_); s = d(s_);
    {{ x - t in [-1b200, -1b-200] /\\ s in [1b-30, 1b30]
    -> d(d(x - t) * s) -/ ((x - t) * s) in [{number(-TWICE)}, {number(TWICE)}] }}"""
    yield Fraction(share) - COMPUTED >= EXPONENT


def step(share: float) -> Checks:
    """A block's ids, a replacement and an addition for each block, and the shares.

    A list is added up one by one.
    """
    for rows in ROWS:
        each = max(BLOCK, -(-rows // MOST_SHARES))
        shares, blocks = -(-rows // each), -(-each // BLOCK)
        lost = growth(BLOCK - 1 + blocks + shares - 1, U64) + growth(blocks + 1, REPLACED)
        steps = BLOCK + exact_log_z.REPLACED.value * (blocks + 1) + shares
        yield lost * (1 + lost) <= Fraction(share) * steps * (1 - COMPUTED)
        yield growth(rows, U64) <= Fraction(share) * rows * (1 - COMPUTED)


def tiny(least: float) -> Checks:
    """An exponential that is taken for 0, and what a replacement makes of nearly nothing."""
    below = 1 / exponential_below(Fraction(REACH) * (1 - 4 * U64))
    yield below + 4 * Fraction(2) ** -1074 <= Fraction(least) * (1 - COMPUTED)


def log_error(share: float) -> Checks:
    """log(u) x / (u - 1), u being 1 + x rounded, and the product with this share.

    log(1 + x) / x changes by (1 + x) / x - 1 / log(1 + x), less than 1, of what 1 + x changes by:
    both as shares of themselves.
    """
    unit = f"[{number(-U64)}, {number(U64)}]"
    yield f"x = d(x_); {{ x in [1b-60, 1b200] -> d(1 + x) -/ (1 + x) in {unit} }}"
    yield f"u = d(u_); {{ u in [1, 1b200] -> d(u - 1) -/ (u - 1) in {unit} }}"
    off = (1 + LIBDEVICE) * (1 + growth(5, U64))  # u, its difference, quotient, two products
    yield off * (1 - Fraction(share)) <= 1
    yield (2 - off) * (1 + Fraction(share)) >= 1


# Beside float32 weights


def shifted(share: float, fixed: int, beside: int) -> Checks:
    """A logit, an edit or a lower bound is rounded to float32; from the largest it is NATS at most.

    In nats, by halves of binades of the largest. `fixed` are those that the share is of beside the
    largest; rounding as many as are `beside` is a part of OFF.
    """
    halves = ((h << p, (h + 1) << p) for p in range(125) for h in (2, 3))
    for low, high in ((0, 1), (1, 2), *halves):
        allowed = (Fraction(share) * (low + fixed) + U32 * beside) * (1 - COMPUTED)
        yield f"""{{ |m| in [{low}, {high}] /\\ |y - m| <= {NATS} /\\ |y| <= {high + NATS}
        -> |f(y) - y| <= {number(allowed)} }}"""


def least_weight(least: float) -> Checks:
    """An id of e^-87.3 at most, the least that is a normal float32, counts as nothing."""
    below = Fraction(2) ** -126 * (1 + Fraction(log_z.OFF.value))
    yield 1 / exponential_below(Fraction(NATS)) <= Fraction(2) ** -126
    yield below <= Fraction(least) * (1 - COMPUTED)


def quick_sums(share: float, each: float) -> Checks:
    """A sum in float64, of a list in any order or of shares, its logarithm and what is added.

    The logarithm is of NATS and that of `rows` at most, beside `off` and |begin|, whose shares come
    last: these two are rounded, added up and exponents of e^-off.
    """
    for rows in QUICK_ROWS:
        blocks = -(-max(BLOCK, -(-rows // SHARES)) // BLOCK)
        shared = growth(BLOCK + blocks + SHARES, U64) + growth(blocks + 1, REPLACED)
        listed = growth(max(HELD * group_of(rows), ROOM), U64)
        lost = EXPONENT + max(shared, listed) + LIBDEVICE + 2 * U64
        lost += rows * Fraction(log_z.TINY.value)
        nats = NATS + rows.bit_length()
        off = lost * (1 + lost) + (LIBDEVICE + 4 * U64) * nats
        yield off <= (Fraction(share) + Fraction(each) * rows) * (1 - U32)
    yield Fraction(share) * (1 - COMPUTED) >= LIBDEVICE + 8 * U64


def raised(share: float, each: float) -> Checks:
    """A sum of exponentials of ids, and log1p of it, which its own share of it moves by less.

    That is t / (1 + t) of the share, and log(1 + t) is at most t / (1 + t) (1 + log(1 + t)).
    """
    for count in ROWS[1:]:
        lost = EXPONENT + growth(count, U64) + LIBDEVICE * (2 + count.bit_length())
        yield lost * (1 + lost) <= (Fraction(share) + Fraction(each) * count) * (1 - COMPUTED)


EXACT, QUICK, PRINTED = "gpu.kernels.exact_log_z", "gpu.kernels.log_z", "gpu.log_z"
ROUNDED, EACH = log_z.ROUNDED.value, log_z.EACH.value

THEOREMS = [
    Theorem(
        "log Z on a GPU, exponents", "an exponential and its exponents, of itself",
        f"{EXACT}.SPREAD", exact_log_z.SPREAD.value, spread, 4,
    ),
    Theorem(
        "log Z on a GPU, additions", "what each step rounds, of the sum",
        f"{EXACT}.STEP", exact_log_z.STEP.value, step, 2.1,
    ),
    Theorem(
        "log Z on a GPU, underflow", "an id that counts as 0",
        f"{EXACT}.TINY", exact_log_z.TINY.value, tiny, 1 << 22,
    ),
    Theorem(
        "log Z on a GPU, logarithm", "log(1 + S) of an end of the interval, of itself",
        f"{EXACT}.LOG_ERROR", exact_log_z.LOG_ERROR.value, log_error, 2,
    ),
    Theorem(
        "quick log Z on a GPU, logits", "a logit or an edit in float32, its distance in nats",
        f"{QUICK}.ROUNDED32", log_z.ROUNDED32.value, partial(shifted, fixed=90, beside=0), 5,
    ),
    Theorem(
        "log Z of bounds on a GPU", "an edit or a lower bound in float32, of the largest logit",
        f"{QUICK}.ROUNDED_BOUND", log_z.ROUNDED_BOUND.value, partial(shifted, fixed=0, beside=NATS),
        2.1,
    ),
    Theorem(
        "quick log Z on a GPU, underflow", "an id that counts as 0 in float32",
        f"{QUICK}.TINY", log_z.TINY.value, least_weight, 16,
    ),
    Theorem(
        "quick log Z on a GPU, sums", "sums in float64 and logarithms",
        f"{QUICK}.ROUNDED", ROUNDED, partial(quick_sums, each=EACH), 8,
    ),
    Theorem(
        "quick log Z on a GPU, rows", "what a list or a share of all ids rounds, for each id",
        f"{QUICK}.EACH", EACH, partial(quick_sums, ROUNDED), 2,
    ),
    Theorem(
        "raised log Z on a GPU", "a sum of exponentials and its logarithm",
        f"{PRINTED}.SPREAD", printed.SPREAD, partial(raised, each=printed.STEP), 8,
    ),
    Theorem(
        "raised log Z on a GPU, ids", "a sum of exponentials, for each of them",
        f"{PRINTED}.STEP", printed.STEP, partial(raised, printed.SPREAD), 4,
    ),
]  # fmt: skip
