"""The end of `logitsieve train`: from the trained model to contexts and an index."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.build import show
from logitsieve.cli.options import flag, read_options
from logitsieve.index_builder import BuildConfig, build
from logitsieve.utils.environment import require
from logitsieve.utils.options import Progress

if TYPE_CHECKING:
    from logitsieve.index import Index
    from logitsieve.training.trainer import LanguageModel

CONTEXTS, HELD_OUT = "contexts", "heldout"  # folders in the run


@dataclass(frozen=True, kw_only=True)
class ToServing:
    """Contexts to capture from a run, and the index to build from them, if any.

    Checked before hours of training.
    """

    capture: int | None = flag(
        None, "Number of contexts to capture afterwards, spread over the text.", min=2
    )
    build: Path | None = flag(
        None, "The index to build from those contexts: a new <name>/<version>."
    )
    build_config: Path | None = flag(None, "TOML file of options of logitsieve build.")

    def __post_init__(self) -> None:
        if self.capture is not None:
            require("builder", "torch", "faiss")
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
        """Return the number of contexts kept and the index."""
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
        """Print the index, or the command that builds one."""
        if index is not None:
            show(index)
        elif rows is not None:
            made = out / CONTEXTS
            print(f"{made}: {rows:,} contexts")
            print(
                f"Next: logitsieve build --weight {made}/weight.npy --bias {made}/bias.npy "
                f"--contexts {made} --heldout {out / HELD_OUT} "
                f"--vocabulary {out}/vocab.txt --out models/NAME/1"
            )


def _capture(model: LanguageModel, ids: Any, most: int, out: Path, progress: Progress) -> int:
    """Capture contexts of windows spread over the text, unless done before."""
    from logitsieve.index_builder.capture import CaptureConfig, capture
    from logitsieve.training.trainer.corpus import WINDOW, windows

    if (out / "capture.json").exists():
        summary = json.loads((out / "capture.json").read_text(encoding="utf-8"))
        if summary["max_rows"] != most:
            raise InvalidRequest("capture", most, f"{summary['max_rows']}, as in {out}")
        return int(summary["rows"])
    summary = capture(
        model,
        windows(ids, most + WINDOW - 1),
        out,
        output_layer="output",
        config=CaptureConfig(max_rows=most),
        progress=lambda _, seen, __: progress(f"read to {out.name}", seen, 0),
    )
    return int(summary["rows"])
