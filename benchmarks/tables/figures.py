"""Figures and tables as they are printed."""

ABSENT = ""  # a cell without a measurement
UNMEASURED = "Not measured yet.\n"  # in place of a table


def digits(value: float, significant: int = 3) -> str:
    """That many significant digits, thousands apart: 2.53, 11.7, 33,600."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{significant - 1}e}")
    exponent = int(f"{rounded:e}".partition("e")[2])
    return f"{rounded:,.{max(0, significant - 1 - exponent)}f}"


def ratio(value: float) -> str:
    """How many times: 6.5x, 19.5x, 46x, 5,980x."""
    return (f"{value:.1f}" if value < 20 else digits(value, 3 if value >= 1000 else 2)) + "x"


def markdown(head: list[str], rows: list[list[str]], merged: int = 0) -> str:
    """A table; of its first `merged` columns a row shows what differs from the row above."""
    lines, above = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"], list[str]()
    for row in rows:
        same = next((n for n in range(merged) if row[: n + 1] != above[: n + 1]), merged)
        lines.append("| " + " | ".join([ABSENT] * same + row[same:]) + " |")
        above = row
    return "\n".join(lines).replace("|  ", "| ") + "\n"
