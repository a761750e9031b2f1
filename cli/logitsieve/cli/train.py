"""`logitsieve train`: a language model, and an index of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from threading import Event
from types import FrameType

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import AsJson, flag, is_typed
from logitsieve.cli.output import TrainDisplay, print_json, print_table, train_display
from logitsieve.cli.train_to_index import ToServing
from logitsieve.training.config import TrainConfig


def _show_losses(wanted: bool) -> None:
    if wanted:
        from logitsieve.training import LOSSES

        rows = [
            (name, key, option.shown_type, repr(option.default))
            for name, loss in LOSSES.items()
            for key, option in loss.options.items()
        ]
        print_table("Losses and their options", ["loss", "option", "type", "default"], rows)
        raise typer.Exit


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    out: Path = flag(MISSING, "Folder of the run, made if absent.")
    resume: bool = flag(False, "Continue the run in --out with its options.", "--resume")
    losses: bool = flag(
        False,
        "List the losses and their options.",
        "--losses",
        callback=_show_losses,
        is_eager=True,
    )


def command(
    ctx: typer.Context,
    options: RunOptions,
    after: ToServing,
    config: TrainConfig,
    as_json: AsJson = False,
) -> None:
    """Train an LSTM language model on a text file.

    The text is encoded once, into --out, and read from disk. Ctrl-C saves and stops;
    the same command with --resume goes on, after that or after any other end.

    Example: logitsieve train --text corpus.txt.gz --loss lsh --out runs/lsh --capture 200000
    """
    from logitsieve.training.trainer import begin, load_config, train

    out = options.out
    with train_display(options.resume) as shown:
        if options.resume:
            _refuse_changes(ctx, load_config(out), config)
        else:
            begin(out, config, progress=shown.progress)
        with _stopping() as stop:
            to_be_served = after.capture is not None
            status = train(out, show=shown.step, stop=stop, to_be_served=to_be_served)
        if status.steps < status.total:
            at = f"step {status.steps:,} of {status.total:,}"
            shown.say(f"Stopped and saved at {at}. Go on with the same command and --resume.")
            raise typer.Exit(1)
        contexts, index = after.run(out, shown.progress)
    if as_json:
        facts = {"out": str(out), "steps": status.steps, "perplexity": status.best_perplexity}
        built = None if index is None else str(index.path)
        print_json({**facts, "contexts": contexts, "index": built})
        return
    perplexity = TrainDisplay.perplexity(status.best_perplexity)
    print(f"{out}: {status.steps:,} steps, perplexity {perplexity} on held-out text")
    after.show(out, contexts, index)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Yield a callback, true after SIGINT or SIGTERM; a second signal ends the process."""
    signalled = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        signalled.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signalled.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_changes(ctx: typer.Context, run: TrainConfig, config: TrainConfig) -> None:
    """InvalidRequest if an option with --resume differs from the run's own."""
    for name, value in vars(config).items():
        was = getattr(run, name)
        if is_typed(name, ctx) and value != was:
            raise InvalidRequest(name, value, f"{was}, with which the run was begun")
