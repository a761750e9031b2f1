"""Progress for people without a terminal: a plain line for each stage of a run that takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import Literal, TypeAlias

from logitsieve.utils.options import Progress, no_progress

QUIET_S = 2.0  # a run that is over by then prints nothing

ProgressOption: TypeAlias = Progress | Literal["auto"] | None
"""A callback, "auto" for `StageLines`, or None for silence."""


class StageLines:
    """Prints to stderr the name of each stage as it begins, and the seconds since the run began.

    Nothing is printed in the first QUIET_S seconds; lines of that time come with the next ones.
    """

    def __init__(self, title: str, clock: Callable[[], float] = monotonic) -> None:
        self._title, self._clock, self._began = title, clock, clock()
        self._stages: set[str] = set()
        self._waiting: list[str] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        """A `Progress`: `done` of `total` steps of a stage, or of an unknown number (0)."""
        seconds = self._clock() - self._began
        if stage not in self._stages:
            self._stages.add(stage)
            size = f" ({total:,})" if total else ""
            self._waiting.append(f"{self._title}: {seconds:5.0f} s  {stage}{size}")
        if seconds >= QUIET_S:
            while self._waiting:
                print(self._waiting.pop(0), file=sys.stderr, flush=True)


def to_progress(option: ProgressOption, title: str) -> Progress:
    """The callback of an option; "auto" prints lines that begin with `title`."""
    if option == "auto":
        return StageLines(title)
    return no_progress if option is None else option
