"""What the subcommands print: tables and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 160  # columns for a pipe or a file, where nothing says how wide it is


def print_json(value: Any) -> None:
    """One JSON document."""
    typer.echo(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The title and a table; cells are shown as they are, never as markup, numbers to the right."""
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
    """A cell: floats to four significant digits, absent values as a dash, no control characters."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if text.isprintable() else ascii(text)


def size(count: float) -> str:
    """Bytes for people: 7.8 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Rows (or whatever the stage counts) a second."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A callback (stage, done, total; total 0 if unknown) drawn on a terminal, else silent."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        _Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = display.add_task(stage)
            display.update(tasks[stage], completed=done, total=total or None)

        yield report
