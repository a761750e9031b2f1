"""`logitsieve train`: a language model, and an index of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import AsJson, flag, is_typed
from logitsieve.cli.output import TrainDisplay, print_json, print_table, train_display
from logitsieve.training import TrainConfig
from logitsieve.utils.environment import require
from logitsieve.utils.options import Progress

if TYPE_CHECKING:
    from logitsieve.training.trainer import LanguageModel


CONTEXTS, HELD_OUT = "contexts", "heldout"  # folders in the run
WINDOWS_AT_ONCE = 16


def _show_losses(asked: bool) -> None:
    if asked:
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
    capture: int | None = flag(
        None, "Number of contexts to capture afterwards, spread over the text.", min=2
    )

    def __post_init__(self) -> None:
        if self.capture is not None:
            require("builder", "threadpoolctl")

    def contexts(self, progress: Progress) -> int | None:
        """Capture contexts of the trained model and of its held-out text; return their number."""
        if self.capture is None:
            return None
        from logitsieve.training.trainer import Corpus, LanguageModel

        model, corpus = LanguageModel.load(self.out), Corpus.open(self.out)
        rows = _capture(model, corpus.train, self.capture, self.out / CONTEXTS, progress)
        _capture(model, corpus.valid, self.capture, self.out / HELD_OUT, progress)
        return rows


def command(
    ctx: typer.Context, options: RunOptions, config: TrainConfig, as_json: AsJson = False
) -> None:
    """Train an LSTM language model on a text file.

    The text is encoded once, into --out. Ctrl-C saves and stops; the same command with --resume
    goes on, also after any other end.

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
            to_be_served = options.capture is not None
            status = train(out, show=shown.step, stop=stop, to_be_served=to_be_served)
        if status.steps < status.total:
            at = f"step {status.steps:,} of {status.total:,}"
            shown.say(f"Stopped and saved at {at}. Go on with the same command and --resume.")
            raise typer.Exit(1)
        contexts = options.contexts(shown.progress)
    if as_json:
        facts = {"out": str(out), "steps": status.steps, "perplexity": status.best_perplexity}
        print_json({**facts, "contexts": contexts})
        return
    perplexity = TrainDisplay.perplexity(status.best_perplexity)
    print(f"{out}: {status.steps:,} steps, perplexity {perplexity} on held-out text")
    if contexts is not None:
        made = out / CONTEXTS
        print(f"{made}: {contexts:,} contexts")
        print(
            f"Next: logitsieve build --weight {made}/weight.npy --bias {made}/bias.npy "
            f"--contexts {made} --heldout {out / HELD_OUT} "
            f"--vocab-file {out}/vocab.txt --out models/NAME/1"
        )


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Yield a callback, true after SIGINT or SIGTERM; a second one ends the process."""
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
    for name, value in vars(config).items():
        was = getattr(run, name)
        if is_typed(name, ctx) and value != was:
            raise InvalidRequest(name, value, f"{was}, with which the run was begun")


def _capture(model: LanguageModel, ids: Any, most: int, out: Path, progress: Progress) -> int:
    """Capture contexts from all over the text, unless done before."""
    import torch

    from logitsieve.index_builder.capture import CaptureConfig, capture
    from logitsieve.training.vocabulary import WINDOW, windows

    if (out / "capture.json").exists():
        summary = json.loads((out / "capture.json").read_text(encoding="utf-8"))
        if summary["max_rows"] != most:
            raise InvalidRequest("capture", most, f"{summary['max_rows']}, as in {out}")
        return int(summary["rows"])
    summary = capture(
        model,
        torch.split(torch.from_numpy(windows(ids, most + WINDOW - 1)), WINDOWS_AT_ONCE),
        out,
        output_layer="output",
        config=CaptureConfig(max_rows=most),
        progress=lambda _, seen, __: progress(f"read to {out.name}", seen, 0),
    )
    return int(summary["rows"])
