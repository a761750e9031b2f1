"""The parts of a sketch's bounds (docs/sketch.md, and M in README.md)."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil, inf, isqrt
from operator import mul

from logitsieve.index.sketch_rows import COORDINATE_ROUNDING
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.planes import LARGEST, LARGEST_CODE, SMALLEST, encode_planes
from logitsieve.kernels.sketch import encode_query, sketch
from logitsieve.kernels.sketch.certified_topk import _above
from logitsieve.kernels.sketch.thresholds import reached_by
from proofs.expression import Symbol, assigned, traced
from proofs.theorem import DIMS, MOST32, U32, U64, Checks, Theorem, growth, nearer_one, number

# The share of a margin that its theorems leave for rounding a threshold.
SPARED = Fraction(1, 1 << 21)
# The error, relative to M, that the check of a sketch accepts.
ACCEPTED = Fraction(COORDINATE_ROUNDING) - 1
# Exponents of M, down to where 1e-30 covers all rounding. Binades differ only in their distance
# from underflow, which matters most to the first.
BINADES = range(-84, 127, 15)
TREE = 4  # steps that add sixteen lanes


def one_step(unit: float) -> Checks:
    """A product, a sum, and both fused round to `unit`; only products underflow."""
    floats = "x = f(x_); y = f(y_); z = f(z_);\n"
    for exact in ("x * y", "z + x * y"):
        relative = f"|{exact}| in [1b-125, 1b127] -> f({exact}) -/ ({exact}) in"
        yield f"{floats}{{ {relative} [-{number(unit)}, {number(unit)}] }}"
        yield f"{floats}{{ |{exact}| <= 1b-125 -> |f({exact}) - ({exact})| <= 1b-150 }}"
    relative = "|x + z| <= 1b127 -> f(x + z) -/ (x + z) in"
    yield f"{floats}{{ {relative} [-{number(unit)}, {number(unit)}] }}"


def lane_steps(dim: int) -> int:
    """Count the roundings of a product in its lane's sum and in the sum of sixteen lanes."""
    return ceil(dim / LANES) + TREE


def coordinate(steps: float, spare: float) -> Checks:
    """Bound the error of U h, if the norm of h, but not of U, may be too small."""
    for dim in DIMS:
        off = growth(lane_steps(dim)) * (1 + growth(lane_steps(dim), U64))
        yield off <= (Fraction(dim, LANES) + Fraction(steps)) * Fraction(spare) * U32 * (
            1 - 8 * U64
        )


def coordinate_underflow(each: float) -> Checks:
    """Each of D products loses 2^-150, for at most D coordinates."""
    for dim in DIMS:
        root = isqrt(dim - 1) + 1
        yield root * dim * Fraction(2) ** -150 <= dim * Fraction(each) * (1 - SPARED)


def summed(spare: float) -> Checks:
    """The norm of D norms of D numbers is summed in any order."""
    for dim in DIMS:
        yield growth(2 * dim + 16, U64) <= Fraction(spare) - 1


def norm(spare: float) -> Checks:
    """A difference, its square, the sum, the root and a product with it round."""
    for dim in DIMS:
        yield growth(lane_steps(dim) + 8, U64) <= Fraction(spare) - 1


def stored(spare: float) -> Checks:
    """The builder's norms are summed in any order; so is ||g||, which multiplies kappa."""
    for dim in DIMS:
        yield growth(dim + 16, U64) + growth(lane_steps(dim) + 8, U64) <= Fraction(spare) - 1


TWICE = 2 * U32 + U32 * U32  # two roundings
Bounds = Callable[[bool, Fraction, str], str]  # fused, the magnitude of terms, a goal


def scaled_sums(largest: int = 1 << 31, code: float = LARGEST_CODE) -> Checks:
    """float(sum) scale is within TWICE of sum scale, for a query with codes up to `code`."""
    least, most = SMALLEST / code / 2, 2 * LARGEST / code
    yield f"""scale = f(scale_); dot = f(f(S) * scale);
    {{ @FIX(S, 0) /\\ |S| in [1, {largest}] /\\ scale in [{number(least)}, {number(most)}]
    -> dot -/ (S * scale) in [{number(-TWICE)}, {number(TWICE)}] }}"""


def margins(
    bounds: Bounds,
    ends: tuple[str, ...],
    share: float,
    binades: Iterable[int],
    fusions: tuple[bool, ...] = (True, False),
) -> Iterator[str]:
    """The ends of `bounds` err by at most a share of the least M of each half binade."""
    for power, half, fused, off in product(binades, (2, 3), fusions, ends):
        least = Fraction(2) ** (power - 1) * half
        allowed = (Fraction(share) - ACCEPTED) * (1 - SPARED) * least
        yield bounds(fused, least * (half + 1) / half, f"|{off}| <= {number(allowed)}")


def underflow(least: float, bounds: Bounds, ends: tuple[str, ...], power: int) -> Checks:
    """For an M of up to 2^power times the least binade, `least` covers all errors."""
    allowed = Fraction(least) * (1 - SPARED)
    for fused, off in product((True, False), ends):
        yield bounds(fused, Fraction(2) ** (BINADES[0] + power), f"|{off}| <= {number(allowed)}")


def finite(largest: float, bounds: Bounds, sums: tuple[str, ...]) -> Checks:
    for fused, value in product((True, False), sums):
        yield bounds(fused, Fraction(largest), f"|{value}| <= {number(MOST32)}")


def normal(least: float) -> Checks:
    rounded = f"f(R) -/ R in [{number(-U32)}, {number(U32)}]"
    yield f"{{ R in [{number(least)}, 1b127] -> {rounded} }}"


def whole_sums(width: float) -> Checks:
    """Sums of codes (even -128, which no builder writes) times codes of a query fit 31 bits."""
    yield 128 * int(LARGEST_CODE) * int(width) < 1 << 31


def codes(no_larger: float) -> Checks:
    """No code exceeds LARGEST_CODE: x factor rounds to no larger integer."""
    scale = Symbol("scale", "f")
    factor = assigned(encode_planes, "factor", scale=scale, NO_LARGER=no_larger)
    x, rounded = Symbol("x", "f"), Symbol("factor", "f")
    code = assigned(encode_planes, "r", x=x, factor=rounded, scale=scale)
    most, less = number(LARGEST_CODE), number(no_larger)
    yield f"""m = f(m_); x = f(x_); scale = f(m / {most}); factor = {factor};
    {{ m in [{number(SMALLEST)}, {number(LARGEST)}] /\\ x / m in [-1, 1]
    -> |{code}| <= {most} }}
    x * factor -> x / m * (m * factor) {{ m <> 0 }};
    m * factor -> {most} * {less} * (1 + (factor - {less} / scale) / ({less} / scale))
    / (1 + (scale - m / {most}) / (m / {most})) {{ m <> 0, scale <> 0 }};"""


CUT = Symbol("w", "d", "a"), Symbol("m", "d")  # a threshold and the margin


def rounded_below(share: float) -> Checks:
    """A threshold is at most the worst answer minus the margin, up to SPARED of the margin."""
    exact = f"w - m - {number(share)} * a"
    threshold = traced(reached_by, *CUT, SPARE=share).returned
    yield from float32_cuts(f"{threshold} - ({exact})", share)


def float32_cuts(
    off: str, share: float | Fraction, other: float | Fraction = SPARED, floats: str = "d"
) -> Iterator[str]:
    """`off` is at most share |w| + other m, where m is at least LEAST_MARGIN.

    One of m and a = |w| is in a binade, and the other is no larger.
    """
    for power, half in product((-100, *BINADES), (2, 3)):
        low = Fraction(2) ** (power - 1) * half
        high = low * (half + 1) / half
        for a, m in (
            ((low, high), (0, low / 16)),
            ((low, high), (low / 16, high)),
            ((0, low), (low, high)),
        ):
            allowed = Fraction(share) * a[0] + Fraction(other) * m[0]
            yield f"""w = {floats}(w_); m = d(m_); a = {floats}(a_);
            {{ a in [{number(a[0])}, {number(a[1])}] /\\ |w| <= {number(a[1])}
            /\\ m in [{number(m[0])}, {number(m[1])}]
            -> |{off}| <= {number(allowed)} }}"""


def rounded_above(share: float) -> Checks:
    """A bound is at least a logit's plus the margin, up to SPARED of the margin.

    If the worst answer is the bound itself, without a margin, others are below it by LEAST_MARGIN.
    """
    exact = f"w + m + {number(share)} * a"
    bound = traced(_above, *CUT, SPARE=share).returned
    yield from float32_cuts(f"{bound} - ({exact})", share)


def exact_steps(steps: float, unit: float) -> Checks:
    """Products are exact, sums round; the rounding of the bias is within the share of M."""
    yield "x = f(x_); y = f(y_); { |x * y| <= 1b256 -> d(x * y) - x * y in [0, 0] }"
    for dim in DIMS:
        allowed = (dim + Fraction(steps)) * Fraction(unit)
        yield growth(lane_steps(dim) + 1, U64) <= allowed * (1 - SPARED)


def left(spare: float) -> Checks:
    """||h|| is computed in float64, the products with it round, and SPARED is left."""
    for dim in DIMS:
        yield (1 + growth(lane_steps(dim) + 8, U64)) * (1 + 2 * SPARED) <= Fraction(spare)


SKETCH, THRESHOLDS = "kernels.sketch.sketch", "kernels.sketch.thresholds"
QUERY = "kernels.sketch.encode_query"
STEPS, SPARE = encode_query.ROTATION_STEPS, encode_query.ROTATION_SPARE

THEOREMS = [
    Theorem("one step", "kernels.topk.descriptor.UNIT32", one_step, 1.01),
    Theorem("coordinates", f"{QUERY}.ROTATION_STEPS", partial(coordinate, spare=SPARE), 1.3),
    Theorem(
        "coordinates, growth", f"{QUERY}.ROTATION_SPARE", partial(coordinate, STEPS), 20, nearer_one
    ),
    Theorem("coordinates, underflow", f"{QUERY}.ROTATION_UNDERFLOW", coordinate_underflow, 3),
    Theorem("norm of U", f"{SKETCH}.SUMMED", summed, 40, nearer_one),
    Theorem("norms", f"{QUERY}.NORM_SPARE", norm, 1e6, nearer_one),
    Theorem("stored norms", "kernels.sketch.encode.ROUNDED", stored, 1e5, nearer_one),
    Theorem("codes of a query", "kernels.simd.planes.NO_LARGER", codes, inf, nearer_one),
    Theorem("sums of codes", "heads.sketch.MAX_CODE_BYTES", whole_sums, 1.02, mul),
    Theorem("factors", f"{QUERY}.NORMAL", normal, 8.6),
    Theorem("dot64", f"{SKETCH}.EXACT_STEPS", partial(exact_steps, unit=sketch.UNIT64), 32),
    Theorem("dot64, unit", f"{SKETCH}.UNIT64", partial(exact_steps, sketch.EXACT_STEPS), 16),
    Theorem("left", f"{QUERY}.LEFT_SPARE", left, 2e4, nearer_one),
    Theorem("threshold", f"{THRESHOLDS}.SPARE", rounded_below, 2),
    Theorem("bounds of a logit", f"{THRESHOLDS}.SPARE", rounded_above, 2),
]
