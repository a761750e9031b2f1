"""Figures as they are printed, marked so that a sentence tells its figures from its words."""

from __future__ import annotations

import re

FIGURE = re.compile("\x02(.*?)\x03")
ABSENT = ""  # a cell of what was not measured


def figure(value: object) -> str:
    """Text that follows the raw results: a number, or a name."""
    return f"\x02{value}\x03"


def plain(text: str) -> str:
    """Without the marks."""
    return FIGURE.sub(r"\1", text)


def is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.,]+", text) is not None


def digits(value: float, significant: int = 3) -> str:
    """That many significant digits, thousands apart: 2.53, 11.7, 33,600."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{significant - 1}e}")
    exponent = int(f"{rounded:e}".partition("e")[2])
    return f"{rounded:,.{max(0, significant - 1 - exponent)}f}"


def number(value: float, significant: int = 3) -> str:
    """Microseconds, milliseconds, rates."""
    return figure(digits(value, significant))


def whole(value: float) -> str:
    return figure(f"{value:,.0f}")


def fixed(value: float, places: int) -> str:
    return figure(f"{value:,.{places}f}")


def percent(value: float, places: int = 0) -> str:
    """Of a share; the sign is left to the sentence."""
    return figure(f"{100 * value:.{places}f}")


def ratio(value: float) -> str:
    """How many times: 6.5, 19.5, 46, 5,980; the sign is left to the sentence."""
    return figure(f"{value:.1f}" if value < 20 else digits(value, 3 if value >= 1000 else 2))


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines).replace("|  ", "| ") + "\n"
