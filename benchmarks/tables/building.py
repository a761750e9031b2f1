"""The table of builds over workers."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.figures import digits, markdown
from benchmarks.tables.results import load

LABELS = ("label", "label held-out")


def building() -> str:
    found = load("building")
    first = found["runs"][0]
    rows = [
        [
            run["workers"],
            digits(run["seconds"]),
            digits(sum(run["stages"][stage] for stage in LABELS)),
            digits(run["stages"]["judge"] + run["stages"]["calibrate"]),
            " to ".join(digits(load, 2) for load in run["load"]),
            "yes" if run["files"] == first["files"] else "no",
        ]
        for run in sorted(found["runs"], key=lambda run: run["workers"])
    ]
    head = ["by", "seconds", "of these, labels", "judging", "load meanwhile", "the same bytes"]
    return markdown(head, rows)


TABLES: dict[str, Callable[[], str]] = {"building": building}
