"""The end of `logitsieve train`: from the trained model to contexts and an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import numbers, read_options
from logitsieve.training.trainer import Corpus, LanguageModel, windows
from logitsieve.training.trainer.corpus import WINDOW
from logitsieve.training.trainer.settings import CONTEXTS, HELD_OUT
from logitsieve.utils.environment import require
from logitsieve.utils.options import Progress

if TYPE_CHECKING:
    from logitsieve.index import Index


@dataclass(frozen=True, kw_only=True)
class ToServing:
    """Contexts to capture from the run in `out`, and the index to build from them, if any."""

    out: Path
    capture: int | None
    build: Path | None
    target: dict[str, float] | None
    options: dict[str, Any]

    @classmethod
    def checked(
        cls,
        out: Path,
        capture: int | None,
        build: Path | None,
        target_precision: Sequence[str] | None,
        build_config: Path | None,
    ) -> Self:
        """The options, checked before hours of training rather than after."""
        if capture is not None:
            require("builder", "torch", "faiss", "matplotlib")
        if build is not None:
            from logitsieve.index import new_path

            if capture is None:
                raise InvalidRequest("capture", "nothing", "a number of contexts for --build")
            new_path(build)
        for name, value in (("target_precision", target_precision), ("build_config", build_config)):
            if value and build is None:
                raise InvalidRequest(name, value, "nothing without --build")
        target = numbers("target_precision", target_precision) if target_precision else None
        if target is not None:
            from logitsieve.index_builder.cascade import TARGETS
            from logitsieve.index_builder.fit_screen import checked_target

            checked_target(target, max(TARGETS.values()))
        options = {}
        if build_config is not None:
            from logitsieve.index_builder import BuildConfig

            options = read_options(build_config, BuildConfig, "build_config")
            BuildConfig(**options)
        return cls(out=out, capture=capture, build=build, target=target, options=options)

    def run(self, progress: Progress) -> tuple[int | None, Index | None]:
        """The number of contexts kept, and the index."""
        if self.capture is None:
            return None, None
        model, corpus = LanguageModel.load(self.out), Corpus.open(self.out)
        rows = _capture(model, corpus.train, self.capture, self.out / CONTEXTS, progress)
        _capture(model, corpus.valid, self.capture, self.out / HELD_OUT, progress)
        return rows, None if self.build is None else self._build(self.build, corpus, progress)

    def show(self, rows: int | None, index: Index | None) -> None:
        """Print the index, or the command that builds one."""
        if index is not None:
            from logitsieve.cli.build import show

            show(index)
        elif rows is not None:
            made = self.out / CONTEXTS
            print(f"{made}: {rows:,} contexts")
            print(
                f"Next: logitsieve build --weight {made}/weight.npy --bias {made}/bias.npy "
                f"--contexts {made} --heldout {self.out / HELD_OUT} "
                f"--vocabulary {self.out}/vocab.txt --out models/NAME/1"
            )

    def _build(self, out: Path, corpus: Corpus, progress: Progress) -> Index:
        from logitsieve.index_builder import BuildConfig, build

        made = self.out / CONTEXTS
        return build(
            made / "weight.npy",
            made / "bias.npy",
            made,
            out,
            vocabulary=corpus.vocabulary.words,
            target_precision=self.target,
            config=BuildConfig(**self.options),
            progress=progress,
            heldout=self.out / HELD_OUT,
        )


def _capture(model: LanguageModel, ids: Any, most: int, out: Path, progress: Progress) -> int:
    """Capture contexts of windows spread over the text, unless an earlier call did."""
    from logitsieve.index_builder.capture import CaptureConfig, capture

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
