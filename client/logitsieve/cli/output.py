"""Print tables and JSON to stdout, and progress to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from logitsieve.utils.options import Progress as ProgressCallback
from logitsieve.utils.options import StageLines, no_progress

if TYPE_CHECKING:
    from logitsieve.training.trainer import TrainingStatus

PIPED_WIDTH = 160  # columns if stdout is no terminal


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(*(shown(line) for line in title.split("\n")), sep="\n")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, column in enumerate(columns):
        is_number = rows and all(isinstance(row[number], int | float | None) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPED_WIDTH)
    console.print(table)


def shown(value: object) -> str:
    """Format a cell: floats to four digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if text.isprintable() else ascii(text)


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def print_files(title: str, sizes: Mapping[str, int], numbers: int) -> None:
    rows = [(file, size(n), f"{100 * n / (4 * numbers):.2f} %") for file, n in sizes.items()]
    print_table(title, ["file", "size", "of W"], rows)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class TrainDisplay:
    """Shows progress on stderr as bars on a terminal, else as lines; validations are lines."""

    def __init__(self, display: Progress, title: str, resumed: bool = False) -> None:
        self._display, self._resumed = display, resumed
        self._tasks: dict[str, TaskID] = {}
        self._lines = StageLines(title) if display.disable else no_progress

    def progress(self, stage: str, done: int, total: int) -> None:
        self._lines(stage, done, total)
        self._update(stage, done, total, f"{done:,}")

    def step(self, status: TrainingStatus) -> None:
        if self._resumed:
            self._resumed = False
            self.say(f"Going on at step {status.steps:,} of {status.total:,}.")
        speed, loss = f"{status.words_per_second:,.0f} words/s", f"loss {status.loss:.3f}"
        if status.validated == status.steps:
            at = f"epoch {status.epoch}  step {status.steps:,}"
            perplexity = self.perplexity(status.perplexity)
            self.say(f"{at}  {speed}  {loss}  valid perplexity {perplexity}")
        self._lines("train", status.steps, status.total)
        self._update("train", status.steps, status.total, f"{speed}  {loss}")

    def say(self, line: str) -> None:
        self._display.console.print(line, highlight=False, soft_wrap=True, markup=False)

    @staticmethod
    def perplexity(value: float) -> str:
        return f"{value:.2f}" if value < 1e6 else f"{value:.2e}"

    def _update(self, stage: str, done: int, total: int, note: str) -> None:
        if stage not in self._tasks:  # steps before `done` do not count for the speed
            self._tasks[stage] = self._display.add_task(stage, completed=done, note=note)
        self._display.update(self._tasks[stage], completed=done, total=total or None, note=note)


def _display(*more: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    shown = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), *more
    disable = not console.is_terminal
    return Progress(*shown, TimeRemainingColumn(), console=console, disable=disable)


@contextmanager
def bars(title: str = "logitsieve") -> Iterator[ProgressCallback]:
    with _display(_Speed()) as display:
        yield TrainDisplay(display, title).progress


@contextmanager
def train_display(resumed: bool) -> Iterator[TrainDisplay]:
    with _display() as display:
        yield TrainDisplay(display, "train", resumed)
