"""What the demo prints."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from time import perf_counter

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

from demo.contexts import HELD_OUT, PROMPTS
from demo.decode import Completion
from demo.measure import REMOTE_CALLS, TIMED_K, Numbers
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
        """A ruled line."""
        self.console.print()
        self.console.rule(Text(text, "bold"), align="left")

    def done(self, name: str, text: str) -> None:
        """All since the stage before was `name`; `text` says what came of it."""
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
        """A callback (step, done, total), drawn on a terminal until the stage ends."""
        columns = TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn()
        hidden = not self.console.is_terminal
        with Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True, disable=hidden
        ) as display:
            tasks: dict[str, TaskID] = {}

            def report(step: str, done: int, total: int) -> None:
                if step not in tasks:
                    tasks[step] = display.add_task(step)
                display.update(tasks[step], completed=done, total=total or None)

            yield report


def index_line(index: Index, target: Mapping[str, float]) -> str:
    """What was built, and whether it is as precise as `target`, {"p1": 0.998}, asks for."""
    calibration, screen = index.calibration or {}, index.manifest.heads["screen"].config
    point = next(each for each in calibration["points"] if each["head"]["name"] == "screen")
    low = {name: point["precision"][name.removeprefix("p")]["low"] for name in target}
    reached = all(low[name] >= value for name, value in target.items())
    asked = ", ".join(f"P@{name[1:]} {value:g}" for name, value in target.items())
    found = ", ".join(f"{value:.4f}" for value in low.values())
    size = sum(entry.size for entry in index.manifest.files()) / 1e6
    return (
        f"{index.name}/{index.version}, {size:.1f} MB: {screen['clusters']:.0f} clusters, "
        f"{screen['candidates']:.0f} candidates a row\n"
        f"target {asked}: {'reached' if reached else 'NOT reached, the nearest is kept'} "
        f"({found} with 95 % confidence)"
    )


def completions_table(completions: Iterable[Completion]) -> Table:
    """Side by side; what `screen` says otherwise is marked."""
    table = Table(
        box=box.SIMPLE_HEAD,
        expand=True,
        pad_edge=False,
        caption="Beam search weighs words by their share of the candidates' probability, and each "
        "head has candidates of its own: completions nearly as likely may change places.\n",
        caption_justify="left",
    )
    table.add_column("prompt", style="bold", ratio=5)
    table.add_column("search", style="cyan", no_wrap=True)
    table.add_column("exact", ratio=6)
    table.add_column("")
    table.add_column("screen", ratio=6)
    shown = ""
    for found in completions:
        same = found.exact == found.screen
        table.add_row(
            Text("" if found.prompt == shown else found.prompt),
            found.search,
            Text(found.exact),
            Text("=", "green") if same else Text("≠", "bold yellow"),
            difference(found.exact, found.screen),
        )
        shown = found.prompt
    return table


def difference(exact: str, screen: str) -> Text:
    """`screen`, in another style from the first word on that is not the one of `exact`."""
    words, pairs = screen.split(" "), zip(exact.split(" "), screen.split(" "), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    same, other = words[:common], words[common:]
    return Text(" ").join([*map(Text, same), *(Text(word, "yellow") for word in other)])


def conditions(numbers: Numbers) -> str:
    """What the numbers depend on."""
    index, cpu = numbers.index, (numbers.index.calibration or {})["machine"]["cpu"]
    return (
        f"V = {index.vocab_size:,}, D = {index.dim}, B = 1 row a call, k = {TIMED_K}, 1 thread, "
        f"{cpu}; medians of {REMOTE_CALLS} calls or more; precision on {numbers.screen.rows:,} "
        "contexts that had no part in the index"
    )


def numbers_table(numbers: Numbers) -> Table:
    """Times of both heads, how many times faster `screen` is, and how precise."""
    exact, screen, found = numbers.speed["exact"], numbers.speed["screen"], numbers.screen
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("exact", "screen", "speed-up"):
        table.add_column(name, justify="right")
    for name, before, after in (
        ("softmax in process, row after row, us", exact.softmax, screen.softmax),
        ("softmax in the server, one row a call, us", exact.compute, screen.compute),
        ("whole step through gRPC, us", exact.step, screen.step),
    ):
        table.add_row(name, f"{before:,.1f}", f"{after:,.1f}", f"{before / after:,.1f}x")
    table.add_section()
    scanned = found.scanned[TIMED_K]
    table.add_row("candidates a row", f"{numbers.index.vocab_size:,}", f"{scanned:,.0f}")
    for k, precision in found.precision.items():
        table.add_row(f"P@{k}", "1", f"{precision.mean:.4f}")
    table.add_row("share of the probability kept", "1", f"{found.mass_kept:.4f}")
    return table


def advice(numbers: Numbers) -> str:
    """When a call over gRPC pays, by the numbers of this run."""
    exact, screen = numbers.speed["exact"], numbers.speed["screen"]
    return (
        f"A call over gRPC costs {screen.step - screen.compute:,.0f} us besides the softmax, and "
        f"the exact softmax in process {exact.softmax:,.0f} us: with a vocabulary this small, open "
        "the index in the decoder's own process; a server pays for much larger vocabularies, for "
        "many rows a call, and where the decoder cannot load the index."
    )


def next_commands(index: Path) -> Iterator[Text]:
    """What to try with the index <models>/<name>/<version>: for each purpose, a command."""
    folder, models = index.parent, index.parent.parent
    program = os.path.relpath(PROGRAM)
    query = f"--hidden {folder / PROMPTS} --vocabulary {index / 'vocabulary.txt'} -k 3"
    judged = f"{index} --contexts {folder / HELD_OUT}"
    for purpose, command in (
        ("Serve it: what `make serve` does", f"serve --models {models}"),
        ("Meanwhile, ask for the words after each prompt", f"query --model {folder.name} {query}"),
        ("Judge it", f"evaluate {judged}"),
        ("Look inside", f"inspect {index}"),
        ("Draw it", f"report {judged} --out {folder / 'report.html'}"),
    ):
        yield Text(f"# {purpose}", "dim")
        yield Text(f"{program} {command}")
