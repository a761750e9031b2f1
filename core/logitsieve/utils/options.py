"""Fields of option dataclasses with help and ranges, and reports of progress."""

import sys
from collections.abc import Callable
from dataclasses import field, fields
from math import inf
from time import monotonic
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from logitsieve.api.errors import InvalidRequest, between

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback (stage, done, total); total is 0 if unknown."""


def no_progress(stage: str, done: int, total: int) -> None:
    pass


def option(default: Any, help: str, low: float | None = None, high: float = inf) -> Any:
    bounds = {} if low is None else {"low": low, "high": high}
    return field(default=default, metadata={"help": help, **bounds})


def check_ranges(options: Any) -> None:
    hints = get_type_hints(type(options))
    for item in (item for item in fields(options) if "low" in item.metadata):
        value, hint = getattr(options, item.name), hints[item.name]
        several, kinds = get_origin(hint) is tuple, get_args(hint) or (hint,)
        if several and not (isinstance(value, tuple) and value):
            raise InvalidRequest(item.name, value, "a tuple of one whole number or more")
        if value is None and NoneType in kinds:
            continue
        low, high = item.metadata["low"], item.metadata["high"]
        integral = int in kinds
        numbers = int if integral else (int, float)
        for one in value if several else [value]:
            if isinstance(one, bool) or not isinstance(one, numbers) or not low <= one <= high:
                kind = "a whole number" if integral else "a number"
                raise InvalidRequest(item.name, one, between(kind, low, high))


QUIET_S = 2.0  # shorter runs are silent
EVERY_S = 10.0

ProgressOption: TypeAlias = Progress | Literal["auto"] | None
"""A callback, "auto" for `StageLines`, or None for silence."""


class StageLines:
    """Prints each stage, and progress every EVERY_S seconds, to stderr once QUIET_S have passed."""

    def __init__(self, title: str, clock: Callable[[], float] = monotonic) -> None:
        self._title, self._clock, self._began = title, clock, clock()
        self._stages: dict[str, tuple[float, int]] = {}
        self._waiting: list[str] = []
        self._printed = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        seconds = self._clock() - self._began
        at = f"{self._title}: {seconds:5.0f} s  {stage}"
        if stage not in self._stages:
            self._stages[stage] = seconds, done
            self._waiting.append(f"{at} ({total:,})" if total else at)
        elif not self._waiting and seconds - self._printed >= EVERY_S:
            first, before = self._stages[stage]
            speed = (done - before) / (seconds - first) if seconds > first else 0.0
            left = f", {(total - done) / speed:.0f} s left" if speed > 0 else ""
            self._waiting.append(f"{at} {done / total:.0%}{left}" if total else f"{at} {done:,}")
        if seconds >= QUIET_S:
            while self._waiting:
                print(self._waiting.pop(0), file=sys.stderr, flush=True)
                self._printed = seconds


def to_progress(option: ProgressOption, title: str) -> Progress:
    """Return the callback for an option; "auto" prints lines that begin with `title`."""
    if option == "auto":
        return StageLines(title)
    return no_progress if option is None else option
