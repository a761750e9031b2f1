"""Console output of the demo: stages with their seconds, two tables, the next commands."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import TextIO

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from demo.contexts import PROMPTS
from demo.decode import HEADS, Completion
from demo.measure import KS, REMOTE_CALLS, TIMED_K, Numbers
from demo.serving import PROGRAM
from logitsieve.index import Index
from logitsieve.utils.options import Progress as Report


class Stages:
    """A line for each stage once it is done, with the seconds it took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._start = self._last = perf_counter()

    @property
    def total(self) -> float:
        """Seconds since the beginning."""
        return perf_counter() - self._start

    def title(self, text: str) -> None:
        """Print a ruled line."""
        self.console.print()
        self.console.rule(Text(text, "bold"), align="left")

    def done(self, name: str, text: str) -> None:
        """Print that stage `name` is done, with its result and its seconds."""
        now = perf_counter()
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(width=8, style="bold green")
        line.add_column(ratio=1)
        line.add_column(justify="right", style="cyan", no_wrap=True)
        line.add_row(name, Text(text), f"{now - self._last:.1f} s")
        self.console.print(line)
        self._last = now

    @contextmanager
    def bars(self) -> Iterator[Report]:
        """Yield a callback (step, done, total), drawn on a terminal until the stage ends."""
        columns = TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn()
        hidden_states = not self.console.is_terminal
        with Progress(
            *columns,
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=hidden_states,
        ) as display:
            tasks: dict[str, TaskID] = {}

            def report(step: str, done: int, total: int) -> None:
                if step not in tasks:
                    tasks[step] = display.add_task(step)
                display.update(tasks[step], completed=done, total=total or None)

            yield report


def index_line(index: Index, target: Mapping[str, float]) -> str:
    """Return the size of the index, and if its screen meets `target`, such as {"p1": 0.998}."""
    calibration, screen = index.calibration or {}, index.manifest.heads["screen"].config
    point = next(each for each in calibration["points"] if each["head"]["name"] == "screen")
    low = {name: point["precision"][name.removeprefix("p")]["low"] for name in target}
    reached = all(low[name] >= value for name, value in target.items())
    wanted = ", ".join(f"P@{name[1:]} {value:g}" for name, value in target.items())
    bounds = ", ".join(f"{value:.4f}" for value in low.values())
    size = sum(entry.size for entry in index.manifest.files()) / 1e6
    return (
        f"{index.name}/{index.version}, {size:.1f} MB: {screen['clusters']:.0f} clusters, "
        f"{screen['candidates']:.0f} candidates per row\n"
        f"target {wanted}: {'reached' if reached else 'NOT reached, the nearest is kept'} "
        f"({bounds} with 95 % confidence)"
    )


def conditions(numbers: Numbers) -> str:
    """Return the setting of the measurement."""
    index, cpu = numbers.index, (numbers.index.calibration or {})["machine"]["cpu"]
    rows = numbers.precision["screen"].rows
    return (
        f"V = {index.vocab_size:,}, D = {index.dim}, one row per call, k = {TIMED_K}, 1 thread, "
        f"{cpu}; medians of {REMOTE_CALLS} calls or more; precision on {rows:,} contexts that had "
        "no part in the index"
    )


def numbers_table(numbers: Numbers) -> Table:
    """Return times of each head with its speed-up over `full`, and its precision."""
    full, *others = HEADS
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in HEADS:
        table.add_column(name, justify="right")
    for title, field in (
        ("softmax in process, \u00b5s per row", "softmax"),
        ("softmax in the server, \u00b5s per row", "compute"),
        ("whole step through gRPC, \u00b5s per row", "step"),
    ):
        before = getattr(numbers.speed[full], field)
        times = {name: getattr(numbers.speed[name], field) for name in others}
        cells = [f"{us:,.0f} [b]{before / us:,.1f}x[/b]" for us in times.values()]
        table.add_row(title, f"{before:,.0f}", *cells)
    table.add_section()
    for k in KS:
        means = [f"{numbers.precision[name].precision[k].mean:.4f}" for name in others]
        table.add_row(f"P@{k}", "1", *means)
    computed = [f"{numbers.precision[name].scanned[TIMED_K]:,.0f}" for name in others]
    table.add_row("rows of W computed", f"{numbers.index.vocab_size:,}", *computed)
    chances = [numbers.index.head(name).max_error for name in HEADS]
    bounded = [f"{chance:g}" if chance < 1 else "-" for chance in chances]
    table.add_row("chance of a wrong row, at most", *bounded)
    return table


def completions_table(completions: Iterable[Completion]) -> Table:
    """Return each prompt's completion by `full`, and the other heads' if it differs."""
    full, *others = HEADS
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("search", style="cyan", no_wrap=True)
    table.add_column(f"[b]prompt[/b] and its completion by {full}")
    for name in others:
        table.add_column(name, min_width=len(name))
    for each in completions:
        text = Text.assemble((each.prompt, "bold"), " ", each.by_head[full])
        differences = [difference(each.by_head[full], each.by_head[name]) for name in others]
        table.add_row(each.search, text, *differences)
    return table


def difference(full: str, other: str) -> Text:
    """Return "same", or `other` with the words after the common beginning in a style."""
    if full == other:
        return Text("same", "green")
    words, pairs = other.split(" "), zip(full.split(" "), other.split(" "), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    same, changed = words[:common], words[common:]
    return Text(" ").join([*map(Text, same), *(Text(word, "yellow") for word in changed)])


def agreement(completions: Sequence[Completion]) -> str:
    """Return the number of completions of each head that equal those of `full`."""
    full, *others = HEADS
    counts = {
        name: sum(each.by_head[name] == each.by_head[full] for each in completions)
        for name in others
    }
    listed = ", ".join(f"{name} {count} of {len(completions)}" for name, count in counts.items())
    return f"the same text as {full}: {listed}"


def wait_for_enter(console: Console, address: str, stdin: TextIO) -> None:
    """Wait for Enter on a terminal, while pages at `address` can be looked at."""
    if console.is_terminal and stdin.isatty():
        console.print(f"\nSee it in a browser: {address} (Enter ends the demo)", soft_wrap=True)
        stdin.readline()


def next_commands(index: Path) -> Iterator[Text]:
    """Yield commands to try with the index <models>/<name>/<version>."""
    folder, models = index.parent, index.parent.parent
    program = os.path.relpath(PROGRAM)
    query = f"--hidden-states {folder / PROMPTS} --vocab-file {index / 'vocabulary.txt'} -k 3"
    for purpose, command in (
        ("Look at its heads and operating points", f"inspect {index}"),
        (
            "Serve it, as `make serve` does, with pages for a browser",
            f"serve --model-repository {models}",
        ),
        ("Meanwhile, ask for the words after each prompt", f"query --model {folder.name} {query}"),
    ):
        yield Text(f"# {purpose}", "dim")
        yield Text(f"{program} {command}")
