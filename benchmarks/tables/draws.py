"""The table of draws beside those from all logits."""

from collections.abc import Callable
from typing import Any

from benchmarks.raw import load
from benchmarks.tables.figures import ABSENT, digits, markdown

HEADS = ("exact", "certified", "estimated")
SCORED = "certified, log-probabilities"


def draws(found: dict[str, Any]) -> str:
    rows = []
    for name, one in found.items():
        shape = f"{name}: V = {one['vocab_size']:,}, D = {one['dim']:,}"
        for asked, times in one["us_per_row"].items():
            us = {who: time["median"] for who, time in times.items()}
            dense = {who: time for who, time in us.items() if who not in (*HEADS, SCORED)}
            best = min(dense, key=lambda who: dense[who])
            ours = us.get("certified", us[SCORED])
            scanned = one["scanned"][asked]
            rows.append(
                [
                    shape,
                    asked,
                    *(digits(us[head]) if head in us else ABSENT for head in (*HEADS, SCORED)),
                    f"{digits(dense[best])} ({best})",
                    f"{digits(dense[best] / ours, 2)}x",
                    f"{scanned['rows']:,.0f}",
                    f"{scanned['all']:.0%}",
                ]
            )
    head = ["", "asked", *(f"`{head}`" for head in HEADS), "`certified` with log-probabilities"]
    head += ["best dense", "times as fast as `certified`", "rows of W", "rows that took all of W"]
    return markdown(head, rows, 1)


TABLES: dict[str, Callable[[], str]] = {"draws": lambda: draws(load("draws"))}
