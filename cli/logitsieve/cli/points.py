"""The table of measured heads, as `build` and `inspect` print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logitsieve.cli.console import print_table

KS = ("1", "5", "10")
BATCHES = (1, 64)


def print_points(calibration: Mapping[str, Any]) -> None:
    """One line an operating point, comparisons too; `calibration` as `Index.measured`."""
    lines: dict[str, dict[str, Any]] = {}
    for point in [*calibration["points"], *calibration["compared"]]:
        knobs = [f"{name}={value:g}" for name, value in point["head"]["knobs"].items()]
        line = lines.setdefault(" ".join([point["head"]["name"], *knobs]), {**point, "us": {}})
        line["us"][point["rows"]] = point["us_per_row"]
    rows = [
        [
            label,
            *(line["precision_at"].get(k) for k in KS),
            line["mass_kept"],
            line["candidates"],
            *(line["us"].get(batch) for batch in BATCHES),
        ]
        for label, line in lines.items()
    ]
    columns = ["head", *(f"P@{k}" for k in KS), "mass", "rows"]
    print_table(
        f"{calibration['heldout_rows']:,} held-out contexts, {calibration['machine']['cpu']}\n"
        "mass: probability kept; rows: of W, looked at; B: us a row at B rows a call",
        [*columns, *(f"B={batch}" for batch in BATCHES)],
        rows,
    )
    if any(point["uneven"] for point in calibration["points"]):
        print("Warning: precision varies between blocks; were the contexts spread?")
