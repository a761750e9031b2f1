"""The raw results that tables are made of."""

from functools import cache
from typing import Any

from benchmarks import raw
from benchmarks.race.points import Race

GROWTH = "race/growth"


@cache
def load(name: str) -> Any:
    """What `benchmarks/results/<name>.json.gz` holds."""
    return raw.read(raw.RESULTS / f"{name}.json.gz")


def race(data: str) -> Race:
    return Race(load(f"race/{data}"))
