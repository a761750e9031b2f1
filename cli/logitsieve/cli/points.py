"""The table of measured heads, as `build` and `inspect` print it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logitsieve.cli.console import print_table
from logitsieve.types.errors import IndexUnreadable

KS = ("1", "5", "10")


def print_points(index: Path, calibration: Mapping[str, Any] | None) -> None:
    """One line a head and batch size, comparisons too; nothing if not calibrated.

    IndexUnreadable if the calibration is not as the builder writes it: no digest covers it.
    """
    if calibration is None:
        return
    try:
        _print(calibration)
    except (KeyError, TypeError, AttributeError) as error:
        file = index / "calibration.json"
        raise IndexUnreadable(file, f"not as the builder writes it: {error!r}") from error


def _print(calibration: Mapping[str, Any]) -> None:
    points = [*calibration["points"], *calibration["compared"]]
    rows: list[list[object]] = [
        [
            point["head"]["name"],
            " ".join(f"{name}={value:g}" for name, value in point["head"]["knobs"].items()),
            point["rows"],
            point["us_per_row"],
            *(point["precision_at"].get(k) for k in KS),
            point["mass_kept"],
            point["candidates"],
        ]
        for point in points
    ]
    title = f"On {calibration['heldout_rows']:,} held-out contexts; {calibration['machine']['cpu']}"
    columns = ["head", "knobs", "rows a call", "us/row", *(f"P@{k}" for k in KS)]
    print_table(title, [*columns, "mass kept", "candidates"], rows)
    if any(point["uneven"] for point in calibration["points"]):
        print("Warning: precision varies between blocks; were the contexts spread?")
