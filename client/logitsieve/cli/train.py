from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.build import show
from logitsieve.cli.options import AsJson, flag, is_typed, read_options
from logitsieve.cli.output import TrainDisplay, print_json, print_table, train_display
from logitsieve.index_builder import BuildConfig, build
from logitsieve.training import TrainConfig
from logitsieve.utils.environment import require
from logitsieve.utils.options import Progress

if TYPE_CHECKING:
    from logitsieve.index import Index
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
class ToServing:
    capture: int | None = flag(
        None, "Number of contexts to capture after training, spread over the text.", min=2
    )
    build: Path | None = flag(
        None, "The index to build from those contexts: a new <name>/<version>."
    )
    build_config: Path | None = flag(None, "TOML file of options of logitsieve build.")

    def __post_init__(self) -> None:
        if self.capture is not None:
            require("builder", "threadpoolctl")
        if self.build is not None:
            from logitsieve.index import new_path

            if self.capture is None:
                raise InvalidRequest("capture", "nothing", "a number of contexts for --build")
            new_path(self.build)
        elif self.build_config is not None:
            raise InvalidRequest("build_config", self.build_config, "nothing without --build")
        _ = self.config

    @cached_property
    def config(self) -> BuildConfig:
        file = self.build_config
        return BuildConfig(**(read_options(file, BuildConfig, "build_config") if file else {}))

    def run(self, out: Path, progress: Progress) -> tuple[int | None, Index | None]:
        if self.capture is None:
            return None, None
        from logitsieve.training.trainer import Corpus, LanguageModel

        model, corpus = LanguageModel.load(out), Corpus.open(out)
        made, heldout = out / CONTEXTS, out / HELD_OUT
        rows = _capture(model, corpus.train, self.capture, made, progress)
        _capture(model, corpus.valid, self.capture, heldout, progress)
        if self.build is None:
            return rows, None
        return rows, build(
            made / "weight.npy",
            made / "bias.npy",
            made,
            self.build,
            vocabulary=corpus.vocabulary.words,
            config=self.config,
            progress=progress,
            heldout=heldout,
        )

    def show(self, out: Path, rows: int | None, index: Index | None) -> None:
        if index is not None:
            show(index)
        elif rows is not None:
            made = out / CONTEXTS
            print(f"{made}: {rows:,} contexts")
            print(
                f"Next: logitsieve build --weight {made}/weight.npy --bias {made}/bias.npy "
                f"--contexts {made} --heldout {out / HELD_OUT} "
                f"--vocab-file {out}/vocab.txt --out models/NAME/1"
            )


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

    The text is encoded once, into --out. Ctrl-C saves and stops; the same command with --resume
    continues, also after a crash.

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
    """Yield a function that is True after SIGINT or SIGTERM; a second signal ends the process."""
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
    """Capture contexts spread over the text, unless an earlier run has done so."""
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
