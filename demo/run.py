"""The whole way, from a model to completed prompts: `python -m demo.run`.

A small language model reads text, its contexts make an index (`build`), a server answers from it
(`logitsieve serve`), and the model completes prompts through gRPC.

Shape letters: W windows, T words of a window, N contexts, D hidden size.
"""

import inspect
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from demo.contexts import FIT, HELD_OUT, PROMPTS, capture_contexts, three_texts, windows
from demo.decode import HEADS, Reader, Writer
from demo.excerpt import EXCERPT, read_paragraphs
from demo.lstm import Lstm
from demo.measure import measure
from demo.serving import NotServing, serving
from demo.show import (
    Stages,
    agreement,
    completions_table,
    conditions,
    index_line,
    next_commands,
    numbers_table,
    wait_for_enter,
)
from demo.warm import compiling
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import LogitsieveError
from logitsieve.client import DecoderClient
from logitsieve.index import Index
from logitsieve.index.manifest import is_version
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.workers import one_thread
from logitsieve.training.vocabulary import Vocabulary

HERE = Path(__file__).parent
NAME = "demo"
TARGET = {"p1": 0.998, "p5": 0.99}
THREADS = min(2, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command; the fields carry their help."""

    models: Annotated[Path, typer.Option(help="Folder that gets demo/VERSION.")] = Path("models")
    model: Annotated[Path, typer.Option(help="Folder of the language model.")] = HERE / "model"
    text: Annotated[Path, typer.Option(help="Text, one paragraph a line, gzipped.")] = EXCERPT
    prompts: Annotated[Path, typer.Option(help="What to complete, one a line.")] = (
        HERE / "prompts.txt"
    )
    contexts: Annotated[int, typer.Option(min=1, help="Contexts to fit on.")] = 30_000
    judged: Annotated[int, typer.Option(min=1, help="Contexts to choose by, and to judge by.")] = (
        8_000
    )
    clusters: Annotated[int, typer.Option(min=1, help="Clusters of the screen.")] = 100
    words: Annotated[int, typer.Option(min=1, help="Longest completion.")] = 14
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses that beam search keeps.")] = 4

    @property
    def folder(self) -> Path:
        """The folder of the versions, and of contexts to try them with."""
        return self.models / NAME

    @property
    def search(self) -> BuildConfig:
        """A light search: one number of clusters, little training, few hash tables."""
        return BuildConfig(
            clusters_tried=(self.clusters,),
            rounds=1,
            steps=60,
            kmeans_iterations=10,
            lsh_tables=64,
            dtype="bfloat16",
            threads=THREADS,
        )


class Demo:
    """The stages, in their order."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.console = console
        self.stages = Stages(console)
        self.model = Lstm.load(options.model)
        self.vocabulary = Vocabulary.load(options.model)
        self.prompts = options.prompts.read_text(encoding="utf-8").splitlines()

    def run(self) -> None:
        """Run all stages; the index stays, the server does not."""
        options = self.options
        words, dim = self.model.weight.shape
        self.stages.title(f"logitsieve: an LSTM with {words:,} words (V) of {dim} numbers (D)")
        with TemporaryDirectory() as scratch, compiling(Path(scratch)):
            self.capture(Path(scratch))
            version = next_version(options.folder)
            index = self.build(Path(scratch), options.folder / str(version))
        label = f"{NAME}@{version}"
        with ExitStack() as stack:
            with self.console.status("starting the server"):
                at = stack.enter_context(serving(options.models, label))
            decoder = stack.enter_context(DecoderClient(at.grpc))
            self.stages.done("serve", f"{label} is ready at {at.grpc}, in a process of its own")
            self.measure(index, decoder, label)
            self.complete(decoder, label)
            self.stages.title(f"Done in {self.stages.total:.0f} s")
            kept = options.folder / str(version)
            self.console.print(
                f"{kept} stays. Each run adds a version and deletes none; `{NAME}` means the "
                "highest.\n"
            )
            self.console.print(*next_commands(kept), sep="\n", soft_wrap=True)
            wait_for_enter(self.console, at.console, sys.stdin)

    def capture(self, scratch: Path) -> None:
        """Capture the contexts of each text in a file of its own."""
        texts = three_texts(read_paragraphs(self.options.text))._asdict()
        most = {"fit": self.options.contexts}
        read_WT = {
            name: windows(self.vocabulary, paragraphs, most.get(name, self.options.judged))
            for name, paragraphs in texts.items()
        }
        with self.stages.bars() as bars:
            for name, ids_WT in read_WT.items():
                capture_contexts(self.model, ids_WT, scratch / f"{name}.npy", bars)
        rows = {name: f"{ids_WT.size:,}" for name, ids_WT in read_WT.items()}
        self.stages.done(
            "capture",
            f"{rows['fit']} contexts to fit on, from text the model was trained on; "
            f"{rows['choose']} to choose by and {rows['judge']} to judge by, from other text",
        )

    def build(self, scratch: Path, out: Path) -> Index:
        """Build the index `out`, and save contexts to try it with."""
        with self.stages.bars() as bars:
            index = build(
                self.model.weight,
                self.model.bias,
                scratch / "fit.npy",
                out,
                vocabulary=self.vocabulary.words,
                target_precision=TARGET,
                heads=HEADS,  # shown, even if one is no faster on this machine
                config=self.options.search,
                progress=bars,
                heldout=scratch / "choose.npy",
                best_effort=True,
            )
        prompts = [
            Reader(self.model).read([self.vocabulary.encode(prompt)]) for prompt in self.prompts
        ]
        np.save(self.options.folder / PROMPTS, np.concatenate(prompts))
        copy(scratch / "fit.npy", self.options.folder / FIT)
        copy(scratch / "judge.npy", self.options.folder / HELD_OUT)
        self.stages.done("build", index_line(index, TARGET))
        return index

    def measure(self, index: Index, decoder: Decoder, label: str) -> None:
        """Judge and time the heads on unseen text."""
        hidden_ND = np.load(self.options.folder / HELD_OUT).astype(np.float32)
        with self.stages.bars() as bars:
            numbers = measure(index, decoder, label, hidden_ND, bars)
        self.stages.done("measure", conditions(numbers))
        self.console.print(numbers_table(numbers))

    def complete(self, decoder: Decoder, label: str) -> None:
        """Complete every prompt with each head, through the server."""
        options = self.options
        writer = Writer(
            model=self.model,
            vocabulary=self.vocabulary,
            decoder=decoder,
            label=label,
            words=options.words,
        )
        completions = []
        with self.stages.bars() as bars:
            for each in writer.compare(self.prompts, options.beams):
                completions.append(each)
                bars("complete", len(completions), 2 * len(self.prompts))
        self.stages.done("decode", agreement(completions))
        self.console.print(completions_table(completions))


def next_version(folder: Path) -> int:
    """Return one more than the highest version in `folder`, or 1."""
    names = (path.name for path in folder.glob("*"))
    return 1 + max((int(name) for name in names if is_version(name)), default=0)


def main(**values: Any) -> None:
    """Capture contexts, build an index, serve it and decode through the server."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with one_thread():  # the LSTM's products are too small to share
            Demo(Options(**values), Console()).run()
    except (LogitsieveError, NotServing) as error:
        sys.exit(f"error: {error}")


main.__signature__ = inspect.signature(Options)  # type: ignore[attr-defined]

if __name__ == "__main__":
    typer.run(main)
