"""Fields of frozen dataclasses of options, with help and ranges; callbacks of progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import inf
from typing import Any, TypeAlias

from logitsieve.api.errors import InvalidRequest

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (stage, done, total); total is 0 where it is not known."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Do nothing with a report of progress."""


def option(default: Any, help: str, low: float | None = None, high: float = inf) -> Any:
    """A field with its help and, if it is a number, the inclusive range of its values."""
    bounds = {} if low is None else {"low": low, "high": high}
    return field(default=default, metadata={"help": help, **bounds})


def check_range(name: str, value: Any, kind: Any, metadata: Any) -> None:
    """InvalidRequest naming the option unless `value` is of its kind and in its range."""
    low, high = metadata["low"], metadata["high"]
    if value is None and "None" in str(kind):
        return
    integral = str(kind).startswith("int")  # or "int | None"
    kinds = (int,) if integral else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        bounds = f"from {low:g} to {high:g}"
        raise InvalidRequest(name, value, f"{'an integer' if integral else 'a number'} {bounds}")
