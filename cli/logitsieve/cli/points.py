"""The table of operating points, as `build` and `inspect` print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logitsieve.cli.console import print_table

KS = ("1", "5", "10")


def print_points(calibration: Mapping[str, Any] | None) -> None:
    """One line a head, knobs and rows a call; nothing where the index was not calibrated."""
    rows: list[list[object]] = [
        [
            point["head"]["name"],
            " ".join(f"{name}={value:g}" for name, value in point["head"]["knobs"].items()),
            point["rows"],
            point["us_per_row"],
            *(point["precision_at"].get(k) for k in KS),
            point.get("mass_kept"),
            point.get("candidates"),
        ]
        for point in (calibration or {}).get("points", [])
    ]
    columns = ["head", "knobs", "rows", "us/row", *(f"P@{k}" for k in KS)]
    if rows:
        print_table("Calibrated on held-out contexts", [*columns, "mass kept", "candidates"], rows)
