"""`logitsieve train`: a language model, and an index of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import AsJson, flag, is_typed
from logitsieve.cli.output import TrainDisplay, print_json, print_table, train_display
from logitsieve.cli.train_to_index import ToServing
from logitsieve.training.config import TrainConfig

if TYPE_CHECKING:
    from logitsieve.training.trainer import Outcome, Settings


def _show_losses(wanted: bool) -> None:
    if wanted:
        from logitsieve.training import LOSSES
        from logitsieve.training.trainer.losses import shown_type

        rows = [
            (name, key, shown_type(option), repr(option.default))
            for name, loss in LOSSES.items()
            for key, option in loss.options.items()
        ]
        print_table("Losses and their options", ["loss", "option", "type", "default"], rows)
        raise typer.Exit


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    out: Path = flag(MISSING, "Folder of the run, made if absent.")
    text: Path | None = flag(
        None, "Text to train on: UTF-8, plain or gzipped, words separated by spaces."
    )
    valid: Path | None = flag(None, "Text to validate on; the end of --text if absent.")
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
    from logitsieve.training.trainer import Settings, begin, prepare

    out = options.out
    if options.resume:
        _refuse_changes(ctx, Settings.load(out), config, options)
    elif options.text is None:
        raise InvalidRequest("text", "nothing", "a text file, or --resume")
    else:
        begin(out, Settings(text=options.text, valid=options.valid, config=config))
    with train_display(options.resume) as shown:
        prepare(out, progress=shown.progress)
        outcome = _train(out, shown, to_be_served=after.capture is not None)
        contexts, index = after.run(out, shown.progress)
    if as_json:
        facts = {"out": str(out), "steps": outcome.steps, "perplexity": outcome.perplexity}
        built = None if index is None else str(index.path)
        print_json({**facts, "contexts": contexts, "index": built})
        return
    assert outcome.perplexity is not None  # or it would not be finished
    perplexity = TrainDisplay.perplexity(outcome.perplexity)
    print(f"{out}: {outcome.steps:,} steps, perplexity {perplexity} on held-out text")
    after.show(out, contexts, index)


def _train(out: Path, shown: TrainDisplay, to_be_served: bool) -> Outcome:
    """Train to the end; exit code 1 if a signal stops it before."""
    from logitsieve.training.trainer import train

    with _stopping() as stop:
        outcome = train(
            out, progress=shown.progress, show=shown.step, stop=stop, to_be_served=to_be_served
        )
    if not outcome.finished:
        at = f"step {outcome.steps:,} of {outcome.total:,}"
        shown.say(f"Stopped and saved at {at}. Go on with the same command and --resume.")
        raise typer.Exit(1)
    return outcome


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """A callback, true once SIGINT or SIGTERM came; a second signal ends the process."""
    signalled = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_changes(
    ctx: typer.Context, run: Settings, config: TrainConfig, options: RunOptions
) -> None:
    """InvalidRequest if an option beside --resume differs from that of the run."""
    typed: dict[str, Any] = {
        name: value for name, value in vars(config).items() if is_typed(name, ctx)
    }
    paths = {"text": options.text, "valid": options.valid}
    typed |= {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    begun = run.to_json()
    for name, value in typed.items():
        was = tuple(begun[name]) if isinstance(begun[name], list) else begun[name]
        if value != was:
            raise InvalidRequest(name, value, f"{was}, with which the run was begun")
