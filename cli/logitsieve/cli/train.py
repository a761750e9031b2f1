"""`logitsieve train`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.console import print_json, print_table
from logitsieve.cli.options import is_typed, with_options
from logitsieve.cli.train_display import Display, display, perplexity_shown
from logitsieve.cli.train_to_index import ToServing
from logitsieve.training import LOSSES
from logitsieve.training.trainer import Outcome, Settings, TrainConfig, begin, prepare, train
from logitsieve.training.trainer.losses import default_of, options_of, shown_type


def _show_losses(wanted: bool) -> None:
    if wanted:
        rows = [
            (name, option, shown_type(hint), default_of(name, option))
            for name in LOSSES
            for option, hint in options_of(name).items()
        ]
        print_table("Losses and their options", ["loss", "option", "type", "default"], rows)
        raise typer.Exit


@with_options(TrainConfig)
def command(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    config: TrainConfig,
    text: Annotated[
        Path | None,
        typer.Option(help="UTF-8 text, or that gzipped: words between spaces, lines."),
    ] = None,
    valid: Annotated[
        Path | None, typer.Option(help="Text to judge by; absent: the end of --text.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its options.")
    ] = False,
    capture: Annotated[
        int | None,
        typer.Option(min=2, help="Contexts to keep afterwards, spread over the text."),
    ] = None,
    build: Annotated[
        Path | None,
        typer.Option(help="Then the index to build from them: <name>/<version>."),
    ] = None,
    target_precision: Annotated[
        list[str] | None,
        typer.Option(metavar="p1=P,p5=P", help="Its target; see logitsieve build."),
    ] = None,
    build_config: Annotated[
        Path | None, typer.Option(help="TOML file of the options of logitsieve build.")
    ] = None,
    losses: Annotated[
        bool,
        typer.Option("--losses", callback=_show_losses, is_eager=True, help="List the losses."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train an LSTM language model on a text file.

    The text is encoded once, into --out, and read from disk. Ctrl-C saves and stops;
    the same command with --resume goes on, after that or after any other end.

    Example: logitsieve train --text corpus.txt.gz --loss lsh --out runs/lsh --capture 200000
    """
    after = ToServing.checked(out, capture, build, target_precision, build_config)
    if resume:
        _refuse_changes(ctx, Settings.load(out), config, text, valid)
    elif text is None:
        raise InvalidRequest("text", "nothing", "a text file, or --resume")
    else:
        begin(out, Settings(text=text, valid=valid, config=config))
    with display() as shown:
        prepare(out, progress=shown.progress)
        outcome = _train(out, after, shown)
        if not outcome.finished:
            at = f"step {outcome.steps:,} of {outcome.total:,}"
            shown.say(f"Stopped and saved at {at}. Go on with the same command and --resume.")
            raise typer.Exit(1)
        rows, index = after.run(shown.progress)
    if as_json:
        facts = {"out": str(out), "steps": outcome.steps, "perplexity": outcome.perplexity}
        print_json({**facts, "contexts": rows, "index": None if index is None else str(index.path)})
        return
    assert outcome.perplexity is not None  # or it would not be finished
    perplexity = perplexity_shown(outcome.perplexity)
    print(f"{out}: {outcome.steps:,} steps, perplexity {perplexity} on held-out text")
    after.show(rows, index)


def _train(out: Path, after: ToServing, shown: Display) -> Outcome:
    with _stopping() as stop:
        return train(
            out,
            progress=shown.progress,
            show=shown.step,
            stop=stop,
            to_be_served=after.capture is not None,
        )


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came; a second one ends the process as it would have."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_changes(
    ctx: typer.Context, run: Settings, config: TrainConfig, text: Path | None, valid: Path | None
) -> None:
    """What is typed beside --resume must be what the run was begun with."""
    typed: dict[str, Any] = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if is_typed(field.name, ctx)
    }
    given = {"text": text, "valid": valid}
    typed |= {name: str(path.resolve()) for name, path in given.items() if path is not None}
    own = run.to_json()
    for name, value in typed.items():
        was = tuple(own[name]) if isinstance(own[name], list) else own[name]
        if value != was:
            raise InvalidRequest(name, value, f"{was}, with which the run was begun")
