"""What `logitsieve train` shows while it works, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from logitsieve.training.trainer import TrainingStatus

TRAINING = "train"


class Display:
    """Bars on a terminal, and lines for validations everywhere."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def progress(self, stage: str, done: int, total: int) -> None:
        """A stage beside training; total 0 if unknown."""
        self._update(stage, done, total, f"{done:,}")

    def step(self, status: TrainingStatus) -> None:
        """A step of the training, or a validation."""
        speed, loss = f"{status.words_per_second:,.0f} words/s", f"loss {status.loss:.3f}"
        if status.perplexity is not None:
            at = f"epoch {status.epoch}  step {status.steps:,}"
            self.say(
                f"{at}  {speed}  {loss}  valid perplexity {perplexity_shown(status.perplexity)}"
            )
        self._update(TRAINING, status.steps, status.total, f"{speed}  {loss}")

    def say(self, line: str) -> None:
        """A line that stays."""
        self._bars.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _update(self, stage: str, done: int, total: int, note: str) -> None:
        if stage not in self._tasks:  # what was done before counts for no speed
            self._tasks[stage] = self._bars.add_task(stage, completed=done, note=note)
        self._bars.update(self._tasks[stage], completed=done, total=total or None, note=note)


def perplexity_shown(perplexity: float) -> str:
    """Two decimals; of one that diverged the power of ten, not hundreds of digits."""
    return f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.2e}"


@contextmanager
def display() -> Iterator[Display]:
    """A display while the block runs."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield Display(bars)
