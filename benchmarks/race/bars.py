"""Progress bars by stage: a callback (stage, done, total) drawn by rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage that reports, with the time that is left."""
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, TimeRemainingColumn()) as drawn:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = drawn.add_task(stage, total=total or None)
            drawn.update(tasks[stage], completed=done, total=total or None)

        yield report
