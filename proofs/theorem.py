"""A theorem about one constant of the kernels, checked by Gappa and by exact arithmetic.

Gappa (Daumas, Melquiond 2010, Certification of bounds on expressions involving rounded operators)
proves bounds of expressions with every rounding. It ignores overflow, so values are bounded too.
The number of roundings of a sum, and the like, are compared as fractions.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from importlib import import_module
from math import inf
from operator import truediv
from typing import NamedTuple

# float32 and float64, to nearest and ties to even; a broken assumption is an error.
ROUNDINGS = "@f = float<ieee_32,ne>;\n@d = float<ieee_64,ne>;\n"
MOST32 = float.fromhex("0x1.fffffep127")
OPTIONS = "-Wno-unbound-variable", "-Eno-auto-dichotomy", "-Eprecision=128"
UNPROVEN = "properties were not satisfied", "no contradiction was found", "Error: the range of"
UNEQUAL = "not trivially equal"

LARGEST_DIM = 1 << 18  # the most coordinates in theorems about sums
DIMS = [*range(1, 4097), *(n + i for n in (1 << p for p in range(13, 19)) for i in (-1, 0))]
U32, U64 = Fraction(1, 1 << 24), Fraction(1, 1 << 53)

Checks = Iterable[str | bool]


def nearer_one(value: float, by: float) -> float:
    return 1 + (value - 1) / by


class Theorem(NamedTuple):
    """A promise of a constant; `checks` are scripts for Gappa and truth values."""

    name: str
    constant: str  # its module below logitsieve, and its name
    checks: Callable[[float], Checks]
    slack: float  # the theorem fails if the constant is weakened by this factor; inf: never
    weakened: Callable[[float, float], float] = truediv

    @property
    def value(self) -> float:
        module, name = self.constant.rsplit(".", 1)
        return float(getattr(import_module(f"logitsieve.{module}"), name))

    def holds(self, value: float) -> bool:
        return all(
            check if isinstance(check, bool) else proven(check) for check in self.checks(value)
        )

    def proven_slack(self) -> float:
        """Return the largest factor that weakens the constant and is proven, to 3 %."""
        if self.slack == inf:
            return inf
        low, high = 1.0, self.slack
        while high > 1.03 * low:
            middle = (low * high) ** 0.5
            low, high = (
                (middle, high) if self.holds(self.weakened(self.value, middle)) else (low, middle)
            )
        return low


def gappa() -> str | None:
    return shutil.which("gappa")


@cache
def proven(script: str) -> bool:
    """Tell whether Gappa proves it; RuntimeError for a bad script or a hint that is no equality."""
    done = subprocess.run(
        [gappa() or "gappa", *OPTIONS],
        input=ROUNDINGS + script,
        capture_output=True,
        text=True,
        check=False,
    )
    unproven = any(reason in done.stderr for reason in UNPROVEN)
    if UNEQUAL in done.stderr or (done.returncode and not unproven):
        raise RuntimeError(f"{done.stderr}\nof\n{script}")
    return done.returncode == 0


def number(value: float | Fraction) -> str:
    exact = Fraction(value)
    power = exact.denominator.bit_length() - 1
    if exact.denominator != 1 << power:
        raise ValueError(f"{value} is not a multiple of a power of two")
    return f"{exact.numerator}b{-power}"


def growth(steps: int | Fraction, unit: Fraction = U32) -> Fraction:
    """Bound (1 + unit)^steps - 1 (Higham 2002, Accuracy and Stability, lemma 3.1)."""
    return steps * unit / (1 - steps * unit)
